// Package visible decides what a caller may see. It is between the manager and everything that is encoded for a caller:
// responses, pages, events, exports and the texts of errors. What is hidden, and what may not be searched because the
// response would reveal hidden values, is decided here and nowhere else.
package visible

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// View is what one caller may see. The zero View hides nothing.
type View struct {
	// AuditReads means that reading messages is recorded, so that the audit log must not show parts of them.
	AuditReads bool

	rules *redact.Rules
	// from is the name of the least role that sees everything.
	from string
	// groups looks groups up; nil finds none.
	groups func(context.Context, dlq.GroupQuery) ([]driver.Group, error)
}

// New makes the view of a caller from whom the rules hide something, nil hides nothing; from is the name of the role
// that sees everything, and groups looks groups up.
func New(rules *redact.Rules, from string, groups func(context.Context, dlq.GroupQuery) ([]driver.Group, error)) View {
	if rules.Empty() {
		rules = nil
	}
	return View{rules: rules, from: from, groups: groups}
}

// Hides reports whether something may be hidden from the caller.
func (v View) Hides() bool { return v.rules != nil }

// Text is the visible part of free text.
func (v View) Text(text string) string { return v.rules.Text(text) }

// Header is the visible part of a header's value.
func (v View) Header(name, value string) string { return v.rules.Header(name, value) }

// Entry is the visible part of an entry, without its body.
func (v View) Entry(e *dlq.Entry) wire.Entry { return v.rules.Entry(e.Wire()) }

// Entries are the visible parts of entries, never nil.
func (v View) Entries(entries []dlq.Entry) []wire.Entry {
	return each(entries, v.Entry)
}

// each is the items as show returns them, never nil.
func each[T, S any](items []T, show func(*T) S) []S {
	shown := make([]S, len(items))
	for i := range items {
		shown[i] = show(&items[i])
	}
	return shown
}

// Detail is the visible part of an entry with its body.
func (v View) Detail(e *dlq.Entry) wire.EntryDetail { return v.rules.Detail(e.Detail()) }

// Body is the visible part of a body.
func (v View) Body(b *dlq.Body) wire.Body { return v.rules.Body(b.Wire()) }

// Diff is the difference between the visible parts of two bodies. Where only hidden values differ it is empty, so that
// it does not confirm a guess.
func (v View) Diff(before, after *dlq.Body) payload.Diff {
	return payload.Compare(v.shownBody(before), v.shownBody(after))
}

// Groups are the visible parts of groups, never nil. Groups that look the same are one.
func (v View) Groups(groups []driver.Group) []driver.Group { return v.rules.Groups(groups) }

// Causes returns the query of the groups that the caller's query may show, and turns them into its result. How many
// causes look the same must not change which of them are found, their counts, or their order: they become one before
// the query's status and limit apply.
func (v View) Causes(q driver.GroupQuery) (wide driver.GroupQuery, shown func([]driver.Group) []driver.Group) {
	wide = q
	if !v.rules.HidesText() {
		return wide, v.Groups
	}
	wide.Status, wide.Limit = "", wire.MaxGroups
	rank := func(g driver.Group) int64 {
		if q.Status == "" {
			return g.Counts.Total()
		}
		return g.Counts.Of(q.Status)
	}
	return wide, func(groups []driver.Group) []driver.Group {
		found := slices.DeleteFunc(v.Groups(groups), func(g driver.Group) bool { return rank(g) == 0 })
		slices.SortFunc(found, func(a, b driver.Group) int {
			return cmp.Or(cmp.Compare(rank(b), rank(a)), cmp.Compare(a.Fingerprint, b.Fingerprint))
		})
		return found
	}
}

// alike hides what is hidden in rows, makes one of those that look the same then, and sorts them by their count, the
// largest first, then by how they look: their order would reveal which hidden one has more.
func alike[T any, K cmp.Ordered](
	rows []T, hide func(*T), look func(*T) K, count func(*T) int64, add func(to, more *T),
) []T {
	shown, at := make([]T, 0, len(rows)), map[K]int{}
	for _, row := range rows {
		hide(&row)
		k := look(&row)
		if n, there := at[k]; there {
			add(&shown[n], &row)
			continue
		}
		at[k] = len(shown)
		shown = append(shown, row)
	}
	slices.SortFunc(shown, func(a, b T) int {
		return cmp.Or(cmp.Compare(count(&b), count(&a)), cmp.Compare(look(&a), look(&b)))
	})
	return shown
}

// named are counts under the visible parts of their names.
func (v View) named(field string, counts []wire.NamedCounts) []wire.NamedCounts {
	return alike(counts, func(n *wire.NamedCounts) { n.Name = v.rules.Field(field, n.Name) },
		func(n *wire.NamedCounts) string { return n.Name },
		func(n *wire.NamedCounts) int64 { return n.Counts.Total() },
		func(to, more *wire.NamedCounts) { to.Counts = to.Counts.Plus(more.Counts) })
}

// topics are numbers of entries under the visible parts of their topics.
func (v View) topics(topics []wire.TopicCount) []wire.TopicCount {
	return alike(topics, func(t *wire.TopicCount) { t.Topic = v.Text(t.Topic) },
		func(t *wire.TopicCount) string { return t.Topic },
		func(t *wire.TopicCount) int64 { return t.Count }, func(to, more *wire.TopicCount) { to.Count += more.Count })
}

// causes are numbers of entries under the visible parts of their causes.
func (v View) causes(causes []wire.CauseCount) []wire.CauseCount {
	return alike(causes, func(c *wire.CauseCount) {
		g := v.rules.Group(wire.Group{
			Fingerprint: c.Fingerprint, Cause: c.Cause, Handler: c.Handler, ErrorClass: c.ErrorClass,
		})
		c.Fingerprint, c.Cause, c.Handler, c.ErrorClass = g.Fingerprint, g.Cause, g.Handler, g.ErrorClass
	}, func(c *wire.CauseCount) string { return c.Fingerprint },
		func(c *wire.CauseCount) int64 { return c.Count }, func(to, more *wire.CauseCount) { to.Count += more.Count })
}

// Stats are the visible statistics.
func (v View) Stats(s *driver.Stats) wire.Stats {
	shown := *s
	shown.TopCauses, shown.ByType, shown.ByTopic = v.Groups(s.TopCauses), v.named("event_type", s.ByType), v.named("topic", s.ByTopic)
	shown.Hourly = append([]wire.HourCount{}, s.Hourly...)
	return shown
}

// Run is the visible part of a run, with its progress at a time of the store.
func (v View) Run(r *redrive.Run, now time.Time) wire.Run { return v.rules.Run(r.Shown(now)) }

// Runs are the visible parts of runs, never nil.
func (v View) Runs(runs []redrive.Run, now time.Time) []wire.Run {
	return each(runs, func(r *redrive.Run) wire.Run { return v.Run(r, now) })
}

// Items are the visible parts of the entries of a run, never nil.
func (v View) Items(items []redrive.Item) []wire.RunItem {
	return each(items, func(i *redrive.Item) wire.RunItem { return v.rules.Item(i.RunItem) })
}

// Preview is the visible part of a preview.
func (v View) Preview(p *redrive.Preview) wire.RunPreview {
	shown := p.Wire()
	if !v.Hides() {
		return shown
	}
	shown.Spec = v.rules.Spec(shown.Spec)
	shown.Topics = v.topics(shown.Topics)
	for i := range shown.Destinations {
		d := &shown.Destinations[i]
		d.Broker, d.Topic, d.Consumer, d.RedriveTo = v.Text(d.Broker), v.Text(d.Topic), v.Text(d.Consumer),
			v.Text(d.RedriveTo)
		d.Unreachable = v.Text(d.Unreachable)
	}
	seen := map[wire.RunDestination]bool{}
	shown.Destinations = slices.DeleteFunc(shown.Destinations, func(d wire.RunDestination) bool {
		d.Unreachable = "" // its text may tell apart what looks the same
		again := seen[d]
		seen[d] = true
		return again
	})
	for i := range shown.Sample {
		v.sample(&shown.Sample[i], &p.Sample[i])
	}
	return shown
}

// sample hides values in an entry of a preview or a review.
func (v View) sample(shown *wire.SampleEntry, of *redrive.Sample) {
	shown.Entry, shown.Problem, shown.Diff = v.rules.Detail(shown.Entry), v.rules.PayloadError(shown.Problem), nil
	if of.After == nil {
		return
	}
	if d := v.Diff(of.Before, of.After); !d.Empty() {
		shown.Diff = &d
	}
}

// Review is the visible part of a review, with the run's progress at a time of the store.
func (v View) Review(r *redrive.Review, now time.Time) wire.RunReview {
	if !v.Hides() {
		return r.Wire(now)
	}
	alikes := *r
	alikes.Topics, alikes.Causes = v.topics(r.Topics), v.causes(r.Causes)
	shown := alikes.Wire(now)
	shown.Run = v.rules.Run(shown.Run)
	for i := range shown.Sample {
		v.sample(&shown.Sample[i], &r.Sample[i])
	}
	return shown
}

// Health is the visible state of the program: the errors of components may quote what is hidden.
func (v View) Health(h wire.Health) wire.Health {
	h.Components = maps.Clone(h.Components)
	for name, c := range h.Components {
		c.Error = v.Text(c.Error)
		h.Components[name] = c
	}
	return h
}

// JSON is the visible part of a value that is no payload, as something that JSON can show.
func (v View) JSON(value any) (any, error) { return v.rules.JSON(value) }

// Rules are the visible parts of rules, without fingerprints if guesses of a hidden cause could be checked against
// them.
func (v View) Rules(rules []redrive.Rule) []redrive.Rule {
	shown := slices.Clone(rules)
	for i := range shown {
		r := &shown[i]
		for _, text := range []*string{&r.Name, &r.ErrorClass, &r.ErrorCode, &r.Handler, &r.Topic, &r.CauseText} {
			*text = v.Text(*text)
		}
		if r.Fingerprint != "" && v.rules.HidesText() {
			r.Fingerprint = redact.Mask
		}
	}
	return shown
}

// Mutes are the visible parts of muted causes, never nil.
func (v View) Mutes(mutes []driver.Mute) []driver.Mute {
	return each(mutes, func(m *driver.Mute) driver.Mute { return v.rules.Mute(*m) })
}

// Audit are the visible parts of audit records, never nil.
func (v View) Audit(records []driver.AuditRecord) []wire.AuditRecord {
	return each(records, func(a *driver.AuditRecord) wire.AuditRecord {
		shown := v.rules.Audit(*a)
		if v.AuditReads {
			shown.Detail = maps.Clone(shown.Detail)
			delete(shown.Detail, "diff")
		}
		return shown
	})
}

// Letter hides values in the lines of an export; nil if nothing is hidden.
func (v View) Letter() func(*wire.Letter) {
	if !v.Hides() {
		return nil
	}
	return v.rules.Letter
}

// shownBody is the visible part of a body, as the manager's own type: a comparison needs that.
func (v View) shownBody(b *dlq.Body) *dlq.Body {
	shown := &dlq.Body{}
	w := v.Body(b)
	_ = shown.SetWire(&w) // we made the digest
	return shown
}

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
