package driver

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// Wire is the entry's JSON form, without its body.
func (e *Entry) Wire() wire.Entry {
	o := &e.Origin
	w := wire.Entry{
		ID: e.ID, Status: string(e.Status), Version: e.Version, EventID: wire.Text(e.EventID), EventType: wire.Text(e.EventType),
		SourceTable: wire.Text(e.SourceTable), SourceID: wire.Text(e.SourceID), CorrelationID: wire.Text(e.CorrelationID),
		Broker: wire.Text(o.Broker), Topic: wire.Text(o.Topic), Consumer: wire.Text(o.Consumer), Exchange: wire.Text(o.Exchange),
		RoutingKey: wire.Text(o.RoutingKey), MessageKey: o.Key, Partition: o.Partition, Offset: o.Offset, Position: wire.Text(o.Position),
		BrokerTime: o.Timestamp, Handler: wire.Text(e.Handler), Reason: string(e.Reason), ErrorMessage: wire.Text(e.ErrorMessage),
		ErrorClass: wire.Text(e.ErrorClass), ErrorCode: wire.Text(e.ErrorCode), Rule: wire.Text(e.Rule), Cause: wire.Text(e.Cause),
		Fingerprint: e.Fingerprint, Attempts: e.Attempts, RedriveCount: e.RedriveCount, RedriveBudget: e.RedriveBudget,
		DeathRedrive: e.DeathRedrive, RedriveOf: e.RedriveOf, SeenCount: e.SeenCount, LeaseUntil: e.LeaseUntil, Run: e.Run,
		CreatedAt: e.CreatedAt, FirstFailureAt: e.FirstFailureAt, DiedAt: e.DiedAt, LastSeenAt: e.LastSeenAt,
		LastRedriveAt: e.LastRedriveAt, SucceededAt: e.SucceededAt, ResolvedAt: e.ResolvedAt, ResolvedBy: wire.Text(e.ResolvedBy),
		ChangedAt: e.ChangedAt, ChangedBy: wire.Text(e.ChangedBy), Revision: e.Revision, Size: e.Size,
	}
	if e.Key != (Key{}) {
		w.Key = e.Key[:]
	}
	return w
}

// Detail is the entry's JSON form with its body.
func (e *Entry) Detail() wire.EntryDetail {
	d := wire.EntryDetail{Entry: e.Wire()}
	if e.Body != nil {
		d.Body = e.Body.Wire()
	}
	return d
}

// SetWire makes the entry what its JSON form says. Body is not touched. A key of another length than a [Key] is left
// out.
func (e *Entry) SetWire(w *wire.Entry) {
	*e = Entry{
		ID: w.ID, EventID: string(w.EventID), EventType: string(w.EventType), SourceTable: string(w.SourceTable), SourceID: string(w.SourceID),
		CorrelationID: string(w.CorrelationID),
		Origin: envelope.Origin{
			Broker: string(w.Broker), Topic: string(w.Topic), Consumer: string(w.Consumer), Exchange: string(w.Exchange),
			RoutingKey: string(w.RoutingKey), Key: w.MessageKey, Partition: w.Partition, Offset: w.Offset, Position: string(w.Position),
			Timestamp: w.BrokerTime,
		},
		Handler: string(w.Handler), Reason: envelope.Reason(w.Reason), ErrorMessage: string(w.ErrorMessage), ErrorCode: string(w.ErrorCode),
		ErrorClass: string(w.ErrorClass), Rule: string(w.Rule), Cause: string(w.Cause), Fingerprint: w.Fingerprint, Attempts: w.Attempts,
		Status: Status(w.Status), Version: w.Version, RedriveCount: w.RedriveCount, RedriveBudget: w.RedriveBudget,
		DeathRedrive: w.DeathRedrive, RedriveOf: w.RedriveOf, SeenCount: w.SeenCount, LeaseUntil: w.LeaseUntil, Run: w.Run,
		CreatedAt: w.CreatedAt, FirstFailureAt: w.FirstFailureAt, DiedAt: w.DiedAt, LastSeenAt: w.LastSeenAt,
		LastRedriveAt: w.LastRedriveAt, SucceededAt: w.SucceededAt, ResolvedAt: w.ResolvedAt, ResolvedBy: string(w.ResolvedBy),
		ChangedAt: w.ChangedAt, ChangedBy: string(w.ChangedBy), Revision: w.Revision, Size: w.Size, Body: e.Body,
	}
	if len(w.Key) == len(e.Key) {
		e.Key = Key(w.Key)
	}
}

// SetDetail makes the entry what its JSON form with a body says. The error wraps [ErrInvalid] when the body's digest
// cannot be read.
func (e *Entry) SetDetail(w *wire.EntryDetail) error {
	e.SetWire(&w.Entry)
	e.Body = &Body{}
	return e.Body.SetWire(&w.Body)
}

// Wire is the body's JSON form.
func (b *Body) Wire() wire.Body {
	w := wire.Body{
		Revision: b.Revision, UUID: wire.Text(b.UUID), ContentType: wire.Text(b.ContentType), Headers: b.Headers, StackTrace: wire.Text(b.Trace),
	}
	if w.Headers == nil {
		w.Headers = wire.Headers{}
	}
	if b.Collected != (envelope.Collected{}) {
		w.Collected = &wire.Collected{
			Broker: wire.Text(b.Collected.Broker), From: wire.Text(b.Collected.From), Format: wire.Text(b.Collected.Format),
		}
	}
	w.SetBytes(b.Payload)
	w.SHA256 = hex.EncodeToString(b.SHA256[:])
	return w
}

// SetWire makes the body what its JSON form says. The digest is taken as it stands there: compare it where it matters.
func (b *Body) SetWire(w *wire.Body) error {
	*b = Body{
		Revision: w.Revision, UUID: string(w.UUID), Payload: w.Bytes(), Headers: w.Headers, ContentType: string(w.ContentType),
		Trace: string(w.StackTrace),
	}
	if b.Headers == nil {
		b.Headers = map[string]string{}
	}
	if c := w.Collected; c != nil {
		b.Collected = envelope.Collected{Broker: string(c.Broker), From: string(c.From), Format: string(c.Format)}
	}
	n, err := hex.Decode(b.SHA256[:], []byte(w.SHA256))
	if err != nil || n != len(b.SHA256) || len(w.SHA256) != 2*n {
		return fmt.Errorf("%w: revision %d: %.80q is not a SHA-256 in hex", ErrInvalid, w.Revision, w.SHA256)
	}
	return nil
}

// Wire is the JSON form of the entry and all its bodies.
func (x *Exported) Wire() *wire.Letter {
	l := &wire.Letter{Version: wire.Version, Entry: x.Entry.Wire()}
	for i := range x.Bodies {
		l.Bodies = append(l.Bodies, x.Bodies[i].Wire())
	}
	return l
}

// Wire is the filter's JSON form.
func (f *Filter) Wire() wire.Filter {
	w := wire.Filter{
		IDs: f.IDs, Topic: f.Topic, Consumer: f.Consumer, EventType: f.EventType, Handler: f.Handler, Reason: string(f.Reason),
		ErrorClass: f.ErrorClass, ErrorCode: f.ErrorCode, Fingerprint: f.Fingerprint, EventID: f.EventID, SourceTable: f.SourceTable,
		SourceID: f.SourceID, CorrelationID: f.CorrelationID, TraceID: f.TraceID, Error: f.ErrorText, Payload: f.PayloadText, Cause: f.CauseText,
		From: f.From, To: f.To, ResolvedBefore: f.ResolvedBefore, DiedBefore: f.DiedBefore, Redrives: f.Redrives, Run: f.Run,
	}
	for _, s := range f.Statuses {
		w.Statuses = append(w.Statuses, string(s))
	}
	for _, field := range f.PayloadFields {
		w.PayloadFields = append(w.PayloadFields, field.String())
	}
	return w
}

// SetWire makes the filter what its JSON form says. The error wraps [ErrInvalid] for a payload field that cannot be
// read.
func (f *Filter) SetWire(w *wire.Filter) error {
	*f = Filter{
		IDs: w.IDs, Topic: w.Topic, Consumer: w.Consumer, EventType: w.EventType, Handler: w.Handler, Reason: envelope.Reason(w.Reason),
		ErrorClass: w.ErrorClass, ErrorCode: w.ErrorCode, Fingerprint: w.Fingerprint, EventID: w.EventID, SourceTable: w.SourceTable,
		SourceID: w.SourceID, CorrelationID: w.CorrelationID, TraceID: w.TraceID, ErrorText: w.Error, PayloadText: w.Payload, CauseText: w.Cause,
		From: w.From, To: w.To, ResolvedBefore: w.ResolvedBefore, DiedBefore: w.DiedBefore, Redrives: w.Redrives, Run: w.Run,
	}
	for _, s := range w.Statuses {
		f.Statuses = append(f.Statuses, Status(s))
	}
	for _, text := range w.PayloadFields {
		field, err := ParsePayloadField(text)
		if err != nil {
			return fmt.Errorf("payload_fields: %w", err)
		}
		f.PayloadFields = append(f.PayloadFields, field)
	}
	return nil
}

// Wire is the group's JSON form.
func (g *Group) Wire() wire.Group {
	return wire.Group{
		Fingerprint: g.Fingerprint, Cause: g.Cause, Sample: g.Sample, ErrorClass: g.ErrorClass, Handler: g.Handler, Counts: wire.Counts(g.Counts),
		FirstSeen: g.FirstSeen, LastSeen: g.LastSeen, LastEntry: g.LastEntry, Trend: each(g.Trend, hourTo),
	}
}

// SetWire makes the group what its JSON form says.
func (g *Group) SetWire(w *wire.Group) {
	*g = Group{
		Fingerprint: w.Fingerprint, Cause: w.Cause, Sample: w.Sample, ErrorClass: w.ErrorClass, Handler: w.Handler, Counts: Counts(w.Counts),
		FirstSeen: w.FirstSeen, LastSeen: w.LastSeen, LastEntry: w.LastEntry, Trend: each(w.Trend, hourFrom),
	}
}

// Wire is the JSON form of the statistics.
func (s *Stats) Wire() wire.Stats {
	named := func(n *NamedCounts) wire.NamedCounts {
		return wire.NamedCounts{Name: n.Name, Counts: wire.Counts(n.Counts)}
	}
	return wire.Stats{
		Counts: wire.Counts(s.Counts), ByType: listed(each(s.ByType, named)), ByTopic: listed(each(s.ByTopic, named)),
		TopCauses: listed(each(s.TopCauses, (*Group).Wire)), Hourly: listed(each(s.Hourly, hourTo)), OldestPending: s.OldestPending,
		MeanResolutionSeconds: s.MeanResolution.Seconds(),
	}
}

// SetWire makes the statistics what their JSON form says.
func (s *Stats) SetWire(w *wire.Stats) {
	named := func(n *wire.NamedCounts) NamedCounts { return NamedCounts{Name: n.Name, Counts: Counts(n.Counts)} }
	*s = Stats{
		Counts: Counts(w.Counts), ByType: each(w.ByType, named), ByTopic: each(w.ByTopic, named), Hourly: each(w.Hourly, hourFrom),
		TopCauses:     each(w.TopCauses, func(g *wire.Group) (group Group) { group.SetWire(g); return group }),
		OldestPending: w.OldestPending, MeanResolution: time.Duration(w.MeanResolutionSeconds * float64(time.Second)),
	}
}

// Wire is the JSON form of the audit record.
func (r *AuditRecord) Wire() wire.AuditRecord {
	return wire.AuditRecord{
		ID: r.ID, At: r.At, Actor: r.Actor, Action: string(r.Action), Note: r.Note, EntryID: r.EntryID, Run: r.Run, From: string(r.From),
		To: string(r.To), Version: r.Version, Detail: r.Detail,
	}
}

// SetWire makes the audit record what its JSON form says.
func (r *AuditRecord) SetWire(w *wire.AuditRecord) {
	*r = AuditRecord{
		ID: w.ID, At: w.At, Actor: w.Actor, Action: Action(w.Action), Note: w.Note, EntryID: w.EntryID, Run: w.Run, From: Status(w.From),
		To: Status(w.To), Version: w.Version, Detail: w.Detail,
	}
}

// Wire is the JSON form of the mute.
func (m *Mute) Wire() wire.Mute {
	return wire.Mute{Fingerprint: m.Fingerprint, By: m.By, Note: m.Note, At: m.At, Until: m.Until}
}

// SetWire makes the mute what its JSON form says.
func (m *Mute) SetWire(w *wire.Mute) {
	*m = Mute{Fingerprint: w.Fingerprint, By: w.By, Note: w.Note, At: w.At, Until: w.Until}
}

// Wire is the JSON form of the conflict.
func (e *ConflictError) Wire() wire.Conflict {
	return wire.Conflict{
		EntryID: e.ID, Action: string(e.Action), Status: string(e.Status), Version: e.Version, By: e.By, At: e.At, LeaseUntil: e.LeaseUntil,
	}
}

// SetWire makes the conflict what its JSON form says.
func (e *ConflictError) SetWire(w *wire.Conflict) {
	*e = ConflictError{
		ID: w.EntryID, Action: Action(w.Action), Status: Status(w.Status), Version: w.Version, By: w.By, At: w.At, LeaseUntil: w.LeaseUntil,
	}
}

func hourTo(h *HourCount) wire.HourCount   { return wire.HourCount(*h) }
func hourFrom(h *wire.HourCount) HourCount { return HourCount(*h) }

// each is a list of what one makes of each; nil stays nil.
func each[A, B any](list []A, one func(*A) B) []B {
	var made []B
	for i := range list {
		made = append(made, one(&list[i]))
	}
	return made
}

// listed is the list, never nil.
func listed[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
