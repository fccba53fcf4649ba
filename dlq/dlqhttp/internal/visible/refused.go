package visible

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/envelope"
)

// RefusedError means that the response would show what is hidden from the caller.
type RefusedError struct {
	// Invalid means that the request is invalid for any caller from whom something is hidden, not that it needs another
	// role.
	Invalid bool
	Detail  string
	// Field is the requested field, never the value. Entry is the entry, 0 without one.
	Field string
	Entry int64
}

// Error is for the caller.
func (r *RefusedError) Error() string { return r.Detail }

// Search refuses a filter on hidden values: searching for a value reveals it. Neither parts of hidden texts nor hidden
// values may be searched. A group whose cause is hidden is shown under another fingerprint, so that guessing the real
// one gives the same result as for a group that does not exist.
func (v View) Search(ctx context.Context, f *dlq.Filter) error {
	switch {
	case !v.Hides():
		return nil
	case f.LooksIntoPayloads():
		return v.refuse("payload", "a search in payloads would find what you may not see: use the other fields, or ")
	case v.rules.HidesText() && (f.ErrorText != "" || f.CauseText != ""):
		return v.refuse("error",
			"a search in the texts of errors would find what is hidden from you in them: use the other fields, or ")
	}
	for name, value := range f.Texts() {
		if v.rules.Field(name, *value) != *value {
			return v.hiddenValue()
		}
	}
	if f.Fingerprint == "" || !v.rules.HidesText() || v.groups == nil {
		return nil
	}
	groups, err := v.groups(ctx, dlq.GroupQuery{Fingerprint: f.Fingerprint, Limit: 1})
	if err != nil {
		return err
	}
	if len(groups) == 0 || v.rules.Group(groups[0]).Fingerprint != f.Fingerprint {
		return fmt.Errorf("group %.64q: %w", f.Fingerprint, dlq.ErrNotFound)
	}
	return nil
}

// SearchGroups refuses a query on hidden values, as [View.Search].
func (v View) SearchGroups(ctx context.Context, q *dlq.GroupQuery) error {
	f := dlq.Filter{CauseText: q.CauseText, Handler: q.Handler, ErrorClass: q.ErrorClass, Fingerprint: q.Fingerprint}
	return v.Search(ctx, &f)
}

// Values refuses hidden values: whether something has them would confirm a guess.
func (v View) Values(values ...string) error {
	for _, value := range values {
		if v.Text(value) != value {
			return v.hiddenValue()
		}
	}
	return nil
}

func (v View) hiddenValue() error {
	return v.refuse("value", "what you look for is hidden from you: use another field, or ")
}

// JQ refuses an expression: it could copy hidden values to where they are visible.
func (v View) JQ(expression string) error {
	if v.Hides() && expression != "" {
		return v.refuse("jq", "a jq expression sees what is hidden from you, and could copy it: ")
	}
	return nil
}

// Edit refuses an edit of what is hidden: whether it changes anything would confirm a guess.
func (v View) Edit(e *dlq.Edit, of *dlq.Body) error {
	if !v.Hides() {
		return nil
	}
	if err := v.JQ(e.JQ); err != nil {
		return err
	}
	if bytes.Contains(e.Payload, []byte(redact.Mask)) {
		refused := v.refuse("payload", "this would overwrite what is hidden from you with "+redact.Mask+": ")
		refused.Invalid = true
		return refused
	}
	if e.Payload != nil && !v.Whole(of) {
		return v.refuse("payload", "a part of the payload is hidden from you, so you cannot replace it: ")
	}
	for _, name := range slices.Concat(slices.Collect(maps.Keys(e.SetHeaders)), e.RemoveHeaders) {
		if v.hidden(of.Headers, name) || e.SetHeaders[name] != v.Header(name, e.SetHeaders[name]) {
			header := fmt.Sprintf("header %.100q", name)
			return v.refuse(header, header+" is hidden from you, so you cannot change it: ")
		}
		if name == envelope.KeyContentType && !v.Whole(of) && !bytes.Equal(
			v.shown(of.ContentType, of.Payload), v.shown(e.SetHeaders[name], of.Payload)) {
			return v.refuse("payload", "the content type decides which part of the payload is hidden from you: ")
		}
	}
	return nil
}

// shown is the visible part of a payload, without the content type that a mask quotes at its end.
func (v View) shown(contentType string, payload []byte) []byte {
	contentType = cmp.Or(contentType, "no content type")
	return bytes.TrimSuffix(v.rules.Payload(contentType, payload), fmt.Appendf(nil, "(%.80s)", contentType))
}

// Whole reports whether the caller sees a payload completely.
func (v View) Whole(of *dlq.Body) bool {
	shown := v.Body(of)
	return bytes.Equal(shown.Bytes(), of.Payload)
}

// hidden reports whether a header is hidden: by its name, whether it exists or not, or by its value.
func (v View) hidden(headers map[string]string, name string) bool {
	value := headers[name]
	return v.Header(name, value) != value
}

// refuse refuses a request for what is hidden; why ends before the remedy, which is to ask someone else.
func (v View) refuse(field, why string) *RefusedError {
	return &RefusedError{Field: field, Detail: why + "ask someone with the role " + v.from}
}
