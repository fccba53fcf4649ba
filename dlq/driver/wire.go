package driver

import (
	"encoding/hex"
	"fmt"

	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// Wire is the entry's JSON form, without its body.
func (e *Entry) Wire() wire.Entry {
	w := wire.Entry{
		ID: e.ID, Status: e.Status, Version: e.Version, EventID: wire.Text(e.EventID), EventType: wire.Text(e.EventType),
		SourceTable: wire.Text(e.SourceTable), SourceID: wire.Text(e.SourceID), CorrelationID: wire.Text(e.CorrelationID),
		Broker: wire.Text(e.Origin.Broker), Topic: wire.Text(e.Origin.Topic), Consumer: wire.Text(e.Origin.Consumer),
		Exchange: wire.Text(e.Origin.Exchange), RoutingKey: wire.Text(e.Origin.RoutingKey), MessageKey: e.Origin.Key,
		Partition: e.Origin.Partition, Offset: e.Origin.Offset, Position: wire.Text(e.Origin.Position),
		RedriveTo: wire.Text(e.Origin.RedriveTo), BrokerTime: e.Origin.Timestamp, Handler: wire.Text(e.Handler),
		Reason: string(e.Reason), ErrorMessage: wire.Text(e.ErrorMessage), ErrorClass: wire.Text(e.ErrorClass),
		ErrorCode: wire.Text(e.ErrorCode), Rule: wire.Text(e.Rule), Cause: wire.Text(e.Cause), Fingerprint: e.Fingerprint,
		Attempts: e.Attempts, RedriveCount: e.RedriveCount, RedriveBudget: e.RedriveBudget, DeathRedrive: e.DeathRedrive,
		RedriveOf: e.RedriveOf, SeenCount: e.SeenCount, LeaseUntil: e.LeaseUntil, Run: e.Run, CreatedAt: e.CreatedAt,
		FirstFailureAt: e.FirstFailureAt, DiedAt: e.DiedAt, LastSeenAt: e.LastSeenAt, LastRedriveAt: e.LastRedriveAt,
		SucceededAt: e.SucceededAt, ResolvedAt: e.ResolvedAt, ResolvedBy: wire.Text(e.ResolvedBy), ChangedAt: e.ChangedAt,
		ChangedBy: wire.Text(e.ChangedBy), Revision: e.Revision, Size: e.Size,
	}
	if e.Key != (Key{}) {
		w.Key = e.Key[:]
	}
	return w
}

// SetWire sets the entry from its JSON form, except for Body. A key of the wrong length is ignored.
func (e *Entry) SetWire(w *wire.Entry) {
	*e = Entry{
		ID: w.ID, Status: w.Status, Version: w.Version, EventID: string(w.EventID), EventType: string(w.EventType),
		SourceTable: string(w.SourceTable), SourceID: string(w.SourceID), CorrelationID: string(w.CorrelationID),
		Origin: envelope.Origin{
			Broker: string(w.Broker), Topic: string(w.Topic), Consumer: string(w.Consumer), Exchange: string(w.Exchange),
			RoutingKey: string(w.RoutingKey), Key: w.MessageKey, Partition: w.Partition, Offset: w.Offset,
			Position: string(w.Position), RedriveTo: string(w.RedriveTo), Timestamp: w.BrokerTime,
		},
		Handler: string(w.Handler), Reason: envelope.Reason(w.Reason), ErrorMessage: string(w.ErrorMessage),
		ErrorClass: string(w.ErrorClass), ErrorCode: string(w.ErrorCode), Rule: string(w.Rule), Cause: string(w.Cause),
		Fingerprint: w.Fingerprint, Attempts: w.Attempts, RedriveCount: w.RedriveCount, RedriveBudget: w.RedriveBudget,
		DeathRedrive: w.DeathRedrive, RedriveOf: w.RedriveOf, SeenCount: w.SeenCount, LeaseUntil: w.LeaseUntil, Run: w.Run,
		CreatedAt: w.CreatedAt, FirstFailureAt: w.FirstFailureAt, DiedAt: w.DiedAt, LastSeenAt: w.LastSeenAt,
		LastRedriveAt: w.LastRedriveAt, SucceededAt: w.SucceededAt, ResolvedAt: w.ResolvedAt,
		ResolvedBy: string(w.ResolvedBy), ChangedAt: w.ChangedAt, ChangedBy: string(w.ChangedBy), Revision: w.Revision,
		Size: w.Size, Body: e.Body,
	}
	if len(w.Key) == len(e.Key) {
		e.Key = Key(w.Key)
	}
}

// Detail is the entry's JSON form with its body.
func (e *Entry) Detail() wire.EntryDetail {
	d := wire.EntryDetail{Entry: e.Wire()}
	if e.Body != nil {
		d.Body = e.Body.Wire()
	}
	return d
}

// SetDetail sets the entry, including its body, from its JSON form. The error wraps [ErrInvalid] when the body's digest
// cannot be read.
func (e *Entry) SetDetail(w *wire.EntryDetail) error {
	e.SetWire(&w.Entry)
	e.Body = &Body{}
	return e.Body.SetWire(&w.Body)
}

// Wire is the body's JSON form.
func (b *Body) Wire() wire.Body {
	w := wire.Body{
		Revision: b.Revision, UUID: wire.Text(b.UUID), ContentType: wire.Text(b.ContentType), Headers: b.Headers,
		StackTrace: wire.Text(b.Trace),
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

// SetWire sets the body from its JSON form. The digest is not verified.
func (b *Body) SetWire(w *wire.Body) error {
	*b = Body{
		Revision: w.Revision, UUID: string(w.UUID), Payload: w.Bytes(), Headers: w.Headers,
		ContentType: string(w.ContentType),
		Trace:       string(w.StackTrace),
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
