package redact

import (
	"crypto/sha256"
	"maps"
	"slices"

	"github.com/redrive-go/redrive/dlq"
)

// Entry is a copy with what may be shown of an entry, body included. Nil stays nil.
func (r *Rules) Entry(e *dlq.Entry) *dlq.Entry {
	if e == nil {
		return nil
	}
	shown := *e
	shown.Body = r.Body(e.Body)
	if r.Empty() {
		return &shown
	}
	shown.ErrorMessage, shown.Cause = r.Text(e.ErrorMessage), r.Text(e.Cause)
	return &shown
}

// Body is a copy with what may be shown of a body. Its digest is that of what is shown, so that nobody can try values against the
// digest of what is hidden. Nil stays nil.
func (r *Rules) Body(b *dlq.Body) *dlq.Body {
	if b == nil {
		return nil
	}
	shown := *b
	shown.Headers = r.Headers(b.Headers)
	if r.Empty() {
		return &shown
	}
	shown.Payload, shown.Trace = r.Payload(b.ContentType, b.Payload), r.Text(b.Trace)
	shown.SHA256 = sha256.Sum256(shown.Payload)
	return &shown
}

// Diff is what changed between what may be shown of two bodies. Where only hidden values differ, it says that the payload changed and
// shows no lines.
func (r *Rules) Diff(before, after *dlq.Body) dlq.Diff {
	whole := dlq.DiffBodies(before, after)
	if r.Empty() {
		return whole
	}
	shown := dlq.DiffBodies(r.Body(before), r.Body(after))
	shown.PayloadChanged, shown.Before, shown.After = whole.PayloadChanged, whole.Before, whole.After
	shown.Headers = nil
	for _, h := range whole.Headers { // a hidden header that changed is still one that changed
		h.Before, h.After = r.shownHeader(h.Name, h.Before, h.Added), r.shownHeader(h.Name, h.After, h.Removed)
		shown.Headers = append(shown.Headers, h)
	}
	return shown
}

func (r *Rules) shownHeader(name, value string, absent bool) string {
	if absent {
		return ""
	}
	return r.Header(name, value)
}

// Group is a copy with what may be shown of a group.
func (r *Rules) Group(g dlq.Group) dlq.Group {
	g.Cause, g.Sample = r.Text(g.Cause), r.Text(g.Sample)
	return g
}

// Run is a copy with what may be shown of a redrive run. What it looks for in payloads, and the jq expression that changes them, come from
// somebody who sees payloads, and are hidden.
func (r *Rules) Run(run *dlq.Run) *dlq.Run {
	if r.Empty() {
		return run
	}
	shown := *run
	shown.Cause, shown.Note = r.Text(run.Cause), r.Text(run.Note)
	spec := &shown.Spec
	spec.Filter.ErrorText, spec.Filter.CauseText = r.Text(spec.Filter.ErrorText), r.Text(spec.Filter.CauseText)
	if spec.JQ != "" {
		spec.JQ = Mask
	}
	if spec.Filter.PayloadText != "" {
		spec.Filter.PayloadText = Mask
	}
	spec.Filter.PayloadFields = slices.Clone(spec.Filter.PayloadFields)
	for i := range spec.Filter.PayloadFields {
		spec.Filter.PayloadFields[i].Value = Mask
	}
	return &shown
}

// Recurrence is a copy with what may be shown of a report.
func (r *Rules) Recurrence(report *dlq.Recurrence) *dlq.Recurrence {
	shown := *report
	for _, causes := range []*[]dlq.RecurringCause{&shown.New, &shown.Growing, &shown.Returning, &shown.Fixed, &shown.Steady} {
		copies := make([]dlq.RecurringCause, len(*causes)) // the report of a cache is shared with others
		for i, c := range *causes {
			c.Cause = r.Text(c.Cause)
			copies[i] = c
		}
		*causes = copies
	}
	return &shown
}

// Audit is a copy with what may be shown of an audit record. The stored difference of an edit is text in which paths mean nothing, so
// it is hidden as a whole; the difference of the revisions, redacted, is there for who asks (see [Rules.Diff]).
func (r *Rules) Audit(a dlq.AuditRecord) dlq.AuditRecord {
	if r.Empty() {
		return a
	}
	a.Note, a.Detail = r.Text(a.Note), maps.Clone(a.Detail)
	for name, value := range a.Detail {
		if name == "diff" {
			a.Detail[name] = Mask
			continue
		}
		a.Detail[name] = r.Text(value)
	}
	return a
}

// Exported hides in an entry of an export, in place.
func (r *Rules) Exported(x *dlq.Exported) {
	if r.Empty() {
		return
	}
	x.Entry = *r.Entry(&x.Entry)
	for i := range x.Bodies {
		x.Bodies[i] = *r.Body(&x.Bodies[i])
	}
}
