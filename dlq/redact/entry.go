package redact

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/dlq/wire"
)

// Entry is the visible part of an entry: its texts without what the patterns match. Values against which guesses of a
// hidden value could be checked (the key, the size, the group of a hidden cause) are left out or derived from what is
// shown.
func (r *Rules) Entry(e wire.Entry) wire.Entry {
	if r.Empty() {
		return e
	}
	cause := e.Cause + e.Handler + e.ErrorClass
	texts(r, &e)
	if e.Cause+e.Handler+e.ErrorClass != cause {
		e.Fingerprint = fingerprint(string(e.Handler), string(e.ErrorClass), string(e.Cause))
	}
	if e.MessageKey = r.Payload("", e.MessageKey); len(e.MessageKey) > 0 && r.fields["message_key"] {
		e.MessageKey = []byte(Mask)
	}
	e.Key, e.Size = nil, 0
	return e
}

// texts hides what is hidden in every text of a value.
func texts[T any](r *Rules, of *T) {
	for field, value := range reflect.ValueOf(of).Elem().Fields() {
		if text, ok := reflect.TypeAssert[*wire.Text](value.Addr()); ok {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			*text = wire.Text(r.Field(name, string(*text)))
		}
	}
}

// fingerprint replaces that of a group whose cause is hidden. It is derived from what is shown, so no group in the
// store has it.
func fingerprint(handler, class, cause string) string {
	sum := sha256.Sum256([]byte("hidden\x00" + handler + "\x00" + class + "\x00" + cause))
	return "h" + hex.EncodeToString(sum[:])[:15]
}

// Detail is the visible part of an entry with its body.
func (r *Rules) Detail(d wire.EntryDetail) wire.EntryDetail {
	return wire.EntryDetail{Entry: r.Entry(d.Entry), Body: r.Body(d.Body)}
}

// Body is the visible part of a body. Its digest is that of the visible payload, so that no guess of a hidden value can
// be checked against it.
func (r *Rules) Body(b wire.Body) wire.Body {
	if r.Empty() {
		return b
	}
	b.Headers = r.Headers(b.Headers)
	b.SetBytes(r.Payload(string(b.ContentType), b.Bytes()))
	texts(r, &b)
	if b.Collected != nil {
		b.Collected = new(*b.Collected)
		texts(r, b.Collected)
	}
	return b
}

// Group is the visible part of a group.
func (r *Rules) Group(g wire.Group) wire.Group {
	cause := g.Cause + g.Handler + g.ErrorClass
	g.Cause, g.Sample, g.Handler, g.ErrorClass = r.Text(g.Cause), r.Text(g.Sample), r.Text(g.Handler), r.Text(g.ErrorClass)
	if g.Cause+g.Handler+g.ErrorClass != cause {
		g.Fingerprint = fingerprint(g.Handler, g.ErrorClass, g.Cause)
	}
	return g
}

// Groups are the visible parts of groups, never nil. Groups that look the same become one: they only differ in hidden
// parts.
func (r *Rules) Groups(groups []wire.Group) []wire.Group {
	shown, at := make([]wire.Group, 0, len(groups)), map[string]int{}
	for i := range groups {
		g := r.Group(groups[i])
		if j, there := at[g.Fingerprint]; there && !r.Empty() {
			join(&shown[j], &g)
			continue
		}
		at[g.Fingerprint] = len(shown)
		shown = append(shown, g)
	}
	return shown
}

// join makes one group of two that look the same.
func join(into, g *wire.Group) {
	into.Counts, into.Trend = into.Counts.Plus(g.Counts), slices.Clone(into.Trend) // a cache may share it
	if g.FirstSeen.Before(into.FirstSeen) {
		into.FirstSeen = g.FirstSeen
	}
	if cmp.Or(g.LastSeen.Compare(into.LastSeen), cmp.Compare(g.LastEntry, into.LastEntry)) > 0 {
		into.LastSeen, into.LastEntry, into.Sample = g.LastSeen, g.LastEntry, g.Sample
	}
	for _, hour := range g.Trend {
		at := slices.IndexFunc(into.Trend, func(h wire.HourCount) bool { return h.Hour.Equal(hour.Hour) })
		if at < 0 {
			into.Trend = append(into.Trend, hour)
			continue
		}
		into.Trend[at].Count += hour.Count
		into.Trend[at].Closed += hour.Closed
		into.Trend[at].DiedAgain += hour.DiedAgain
	}
	slices.SortFunc(into.Trend, func(a, b wire.HourCount) int { return a.Hour.Compare(b.Hour) })
}

// Mute is the visible part of a muted cause, without the fingerprint if guesses of a hidden cause could be checked
// against it.
func (r *Rules) Mute(m wire.Mute) wire.Mute {
	if r.HidesText() {
		m.Fingerprint = Mask
	}
	m.By, m.Note = r.Text(m.By), r.Text(m.Note)
	return m
}

// Run is the visible part of a redrive run. What it searches payloads for, and its jq expression, come from a caller
// that sees payloads, so both are hidden.
func (r *Rules) Run(run wire.Run) wire.Run {
	if r.Empty() {
		return run
	}
	run.Cause, run.Note, run.Spec = r.Text(run.Cause), r.Text(run.Note), r.Spec(run.Spec)
	run.CreatedBy, run.ChangedBy, run.ApprovedBy = r.Text(run.CreatedBy), r.Text(run.ChangedBy), r.Text(run.ApprovedBy)
	return run
}

// Spec is the visible part of a run's specification.
func (r *Rules) Spec(spec wire.RunSpec) wire.RunSpec {
	if r.Empty() {
		return spec
	}
	f := &spec.Filter
	for name, text := range f.Texts() {
		*text = r.Field(name, *text)
	}
	if f.Fingerprint != "" && r.HidesText() {
		f.Fingerprint = Mask // guesses of a hidden cause could be checked against it
	}
	if spec.JQ != "" {
		spec.JQ = Mask
	}
	if spec.Filter.PayloadText != "" {
		spec.Filter.PayloadText = Mask
	}
	spec.Filter.PayloadFields = slices.Clone(spec.Filter.PayloadFields)
	for i := range spec.Filter.PayloadFields {
		spec.Filter.PayloadFields[i] = hiddenField
	}
	return spec
}

// hiddenField replaces a payload field that a run searches for.
var hiddenField = wire.PayloadField{Path: []string{"hidden"}, Value: Mask}

// Item is the visible part of an entry of a run.
func (r *Rules) Item(item wire.RunItem) wire.RunItem {
	if fault, failed := strings.CutPrefix(item.Detail, wire.NotEdited); failed {
		item.Detail = wire.NotEdited + r.PayloadError(fault)
	}
	item.Detail = r.Text(item.Detail)
	return item
}

// PayloadError is the visible part of an error that may quote any part of a payload, even half of a value: nothing, if
// something in payloads is hidden.
func (r *Rules) PayloadError(text string) string {
	if text == "" || r == nil || len(r.paths)+len(r.texts) == 0 {
		return text
	}
	return Mask
}

// Audit is the visible part of an audit record. The stored difference of an edit is text, to which paths do not apply,
// so it is hidden as a whole; callers see the redacted difference of the revisions instead.
func (r *Rules) Audit(a wire.AuditRecord) wire.AuditRecord {
	if r.Empty() {
		return a
	}
	a.Note, a.Actor, a.Detail = r.Text(a.Note), r.Text(a.Actor), maps.Clone(a.Detail)
	for name, value := range a.Detail {
		if name == "diff" || name == "payload_bytes" || name == "fingerprint" && r.HidesText() {
			a.Detail[name] = Mask
			continue
		}
		a.Detail[name] = r.Field(name, value)
	}
	return a
}

// Letter redacts a line of an export in place.
func (r *Rules) Letter(l *wire.Letter) {
	l.Entry = r.Entry(l.Entry)
	for i := range l.Bodies {
		l.Bodies[i] = r.Body(l.Bodies[i])
	}
}
