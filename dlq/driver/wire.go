package driver

import (
	"encoding/hex"
	"fmt"

	"github.com/redrive-go/redrive/dlq/internal/mirror"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// Fields with other names in the JSON form; those with an empty name are copied by hand.
var (
	entries = mirror.New[Entry, wire.Entry](map[string]string{
		"Broker": "Origin.Broker", "Topic": "Origin.Topic", "Consumer": "Origin.Consumer", "Exchange": "Origin.Exchange",
		"RoutingKey": "Origin.RoutingKey", "MessageKey": "Origin.Key", "Partition": "Origin.Partition",
		"Offset": "Origin.Offset", "Position": "Origin.Position", "RedriveTo": "Origin.RedriveTo",
		"BrokerTime": "Origin.Timestamp", "Key": "", "Body": "",
		// Not stored.
		"Origin.Incarnation": "", "Origin.Redelivered": "", "Origin.DeliveryCount": "",
	})
	filters = mirror.New[Filter, wire.Filter](map[string]string{
		"Error": "ErrorText", "Payload": "PayloadText", "Cause": "CauseText", "PayloadFields": "",
	})
	stats     = mirror.New[Stats, wire.Stats](map[string]string{"Recent": ""})
	audits    = mirror.New[AuditRecord, wire.AuditRecord](map[string]string{"Entries": "", "Since": ""})
	conflicts = mirror.New[ConflictError, wire.Conflict](map[string]string{"EntryID": "ID", "Run": ""})
)

// Wire is the entry's JSON form, without its body.
func (e *Entry) Wire() wire.Entry {
	w := entries.To(e)
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

// SetWire sets the entry from its JSON form, except for Body. A key of the wrong length is ignored.
func (e *Entry) SetWire(w *wire.Entry) {
	body := e.Body
	*e = entries.From(w)
	e.Body = body
	if len(w.Key) == len(e.Key) {
		e.Key = Key(w.Key)
	}
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

// Wire is the filter's JSON form.
func (f *Filter) Wire() wire.Filter {
	w := filters.To(f)
	for _, field := range f.PayloadFields {
		w.PayloadFields = append(w.PayloadFields, field.String())
	}
	return w
}

// SetWire sets the filter from its JSON form. The error wraps [ErrInvalid] for a payload field that cannot be
// read.
func (f *Filter) SetWire(w *wire.Filter) error {
	*f = filters.From(w)
	for _, text := range w.PayloadFields {
		field, err := ParsePayloadField(text)
		if err != nil {
			return fmt.Errorf("payload_fields: %w", err)
		}
		f.PayloadFields = append(f.PayloadFields, field)
	}
	return nil
}

// Wire is the JSON form of the statistics.
func (s *Stats) Wire() wire.Stats { return stats.To(s) }

// SetWire sets the statistics from their JSON form.
func (s *Stats) SetWire(w *wire.Stats) { *s = stats.From(w) }

// Wire is the JSON form of the audit record.
func (r *AuditRecord) Wire() wire.AuditRecord { return audits.To(r) }

// SetWire sets the audit record from its JSON form.
func (r *AuditRecord) SetWire(w *wire.AuditRecord) { *r = audits.From(w) }

// Wire is the JSON form of the conflict.
func (e *ConflictError) Wire() wire.Conflict { return conflicts.To(e) }

// SetWire sets the conflict from its JSON form.
func (e *ConflictError) SetWire(w *wire.Conflict) { *e = conflicts.From(w) }
