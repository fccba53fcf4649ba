package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/dlq/internal/text"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// Entry is one dead letter as a [Store] keeps it: where the message came from, why it died, and what happened since.
// Listings carry entries without Body. Times are UTC with microseconds; a zero time means "not yet".
type Entry struct {
	// ID is assigned by the store. Zero before the entry is stored.
	ID int64
	// Key identifies the delivery: dead-lettering it again does not make another entry.
	Key Key

	// EventID is the message id, unchanged since the producer. It has no length limit.
	EventID string
	// EventType is the event's name, or the topic if the message has none. Never empty.
	EventType string
	// SourceTable and SourceID name the business record behind the event, if the message contains them (see
	// dlq.WithSource).
	SourceTable, SourceID string
	// CorrelationID links the message to the others of its flow.
	CorrelationID string

	// Origin is where the message was consumed, and where a redrive sends it.
	Origin envelope.Origin
	// Handler is the name of the handler that gave up.
	Handler string

	// Reason, ErrorMessage, ErrorCode, ErrorClass (a Go type) and Rule (which classified the error) are those of the last
	// death.
	Reason                                    envelope.Reason
	ErrorMessage, ErrorCode, ErrorClass, Rule string
	// Cause is ErrorMessage without its numbers, ids and quoted values; Fingerprint is its group.
	Cause, Fingerprint string
	// Attempts is how often the handler ran before the message died.
	Attempts int

	// Status is the entry's state, Version counts its changes from 1 for compare-and-set.
	Status  Status
	Version int64
	// RedriveCount is how often the entry was redriven, RedriveBudget the limit (3 by default).
	RedriveCount, RedriveBudget int
	// DeathRedrive is the number of the redrive of the last recorded death; 0 is the original delivery.
	DeathRedrive int
	// RedriveOf is set on a dead letter of a redriven message before it is stored: the entry that it belongs to.
	RedriveOf int64
	// SeenCount is how often this death was reported; more than 1 after a crash or a lost confirm.
	SeenCount int
	// LeaseUntil is when a redrive without an outcome may be tried again.
	LeaseUntil time.Time
	// Run is the redrive run that last claimed the entry.
	Run string

	// CreatedAt is the first death. FirstFailureAt is the first failed attempt before it, DiedAt the last death.
	CreatedAt, FirstFailureAt, DiedAt, LastSeenAt time.Time
	// LastRedriveAt, SucceededAt and ResolvedAt are the times of the redrive, of its success, and of the closing.
	LastRedriveAt, SucceededAt, ResolvedAt time.Time
	// ResolvedBy is who closed it: an operator, or "redrive".
	ResolvedBy string
	// ChangedAt and ChangedBy are when and by whom the status was last changed, shown to an operator who was slower.
	ChangedAt time.Time
	ChangedBy string

	// Revision is the number of the body that a redrive would send.
	Revision int
	// Size is that body's payload in bytes.
	Size int64
	// Body is the message. Nil in listings.
	Body *Body
}

// Overdue reports whether the entry was redriven and its outcome has not arrived in time: it may be redriven, resolved
// or discarded again.
func (e *Entry) Overdue(now time.Time) bool {
	return e.Status == Retrying && !now.Before(e.LeaseUntil)
}

// Key identifies a delivery: the same delivery dead-lettered twice has the same key.
type Key [sha256.Size]byte

// String returns the key as 64 hex digits.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// Names are the entry's short texts, which may contain whatever a message or an error contained.
func (e *Entry) Names() []*string {
	return []*string{
		&e.EventID, &e.EventType, &e.SourceTable, &e.SourceID, &e.CorrelationID, &e.Handler, (*string)(&e.Reason),
		&e.ErrorCode, &e.ErrorClass, &e.Rule, &e.Origin.Broker, &e.Origin.Topic, &e.Origin.Consumer, &e.Origin.Exchange,
		&e.Origin.Position, &e.Origin.RedriveTo, &e.ResolvedBy, &e.ChangedBy,
	}
}

// Times are the entry's times. The first five are never zero in a store.
func (e *Entry) Times() []*time.Time {
	return []*time.Time{
		&e.CreatedAt, &e.FirstFailureAt, &e.DiedAt, &e.LastSeenAt, &e.ChangedAt,
		&e.Origin.Timestamp, &e.LeaseUntil, &e.LastRedriveAt, &e.SucceededAt, &e.ResolvedAt,
	}
}

// Clean makes every text of an entry valid for the columns of any database (UTF-8, without NUL, bounded), and replaces
// times that MySQL or JSON does not have. What it cuts or replaces is still in the headers and the payload, which are
// bytes. Stores call it, because captures, spools, imports and collectors all end there.
func (e *Entry) Clean() {
	for i, t := range e.Times() {
		switch year := t.UTC().Year(); {
		case t.IsZero() || year >= 1000 && year <= 9999:
		case i == 0:
			*t = time.Now().UTC().Truncate(time.Microsecond)
		case i < 5:
			*t = e.CreatedAt
		default:
			*t = time.Time{}
		}
	}
	if e.ResolvedAt.IsZero() && (e.Status == Resolved || e.Status == Discarded) { // statistics and purges need it
		e.ResolvedAt = e.ChangedAt
	}
	for _, name := range e.Names() {
		*name = text.Clean(*name, text.MaxName)
	}
	e.ErrorMessage = text.Clean(e.ErrorMessage, text.MaxError)
	e.Cause = text.Clean(e.Cause, text.MaxError)
	if e.Body == nil {
		return
	}
	contentType, trace := text.Clean(e.Body.ContentType, text.MaxName), text.Clean(e.Body.Trace, text.MaxTrace)
	if contentType != e.Body.ContentType || trace != e.Body.Trace {
		body := *e.Body // it may be the caller's
		body.ContentType, body.Trace = contentType, trace
		e.Body = &body
	}
}

// FormatID formats an entry's id in decimal.
func FormatID(id int64) string { return strconv.FormatInt(id, 10) }

// ParseID reads an entry's id: a positive decimal number without sign or leading zero. The error wraps [ErrInvalid].
func ParseID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id <= 0 || FormatID(id) != text {
		return 0, fmt.Errorf("%w: %.40q is not the id of an entry: a number from 1", ErrInvalid, text)
	}
	return id, nil
}

// Body is the message of an entry, byte for byte. An entry whose message was edited has several: revision 0 is the
// original.
type Body struct {
	// Revision counts from 0.
	Revision int
	// UUID is the Watermill message's own id.
	UUID string
	// Payload is exactly the consumed payload: any bytes, or none.
	Payload []byte
	// Headers are the message's metadata when it died, including the failure.
	Headers map[string]string
	// Collected is where a collector found the message. It is separate from the headers, which any producer can write.
	Collected envelope.Collected
	// ContentType is the payload's type according to the headers; empty if they have none.
	ContentType string
	// Trace is the error's stack trace, limited to 32 KiB.
	Trace string
	// SHA256 is the digest of Payload.
	SHA256 [32]byte
}

// Exported is an entry with every revision of its body, in order.
type Exported struct {
	// Entry is as it is in the store, without Body. RedriveOf is not set.
	Entry  Entry
	Bodies []Body
}

// Revision is a new revision of an entry's body for a [Store].
type Revision struct {
	EntryID int64
	// Version, unless 0, must be the entry's.
	Version int64
	// Body is the new one. The store numbers it: one more than the last.
	Body *Body
	// Actor is who edits. Required. Note explains why, Detail describes the change, both for the audit log. At is when.
	// Required.
	Actor, Note string
	Detail      map[string]string
	At          time.Time
}

// Validate reports what is missing in the revision.
func (r *Revision) Validate() error {
	if r.Body == nil || r.Actor == "" || r.At.IsZero() {
		return fmt.Errorf("%w: a revision needs a body, an actor and a time", ErrInvalid)
	}
	return nil
}

// Rehash recomputes the fields derived from payload and headers.
func (b *Body) Rehash() {
	b.SHA256 = sha256.Sum256(b.Payload)
	b.ContentType = text.Clean(b.Headers[envelope.KeyContentType], text.MaxName)
}

type collectedKey struct{}

// WithCollected returns a context for a redriven message, with where a collector found it.
func WithCollected(ctx context.Context, c envelope.Collected) context.Context {
	return context.WithValue(ctx, collectedKey{}, c)
}

// CollectedFrom returns the value of [WithCollected] in a message's context; zero if there is none.
func CollectedFrom(ctx context.Context) envelope.Collected {
	c, _ := ctx.Value(collectedKey{}).(envelope.Collected)
	return c
}

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
