package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/dlq/internal/text"
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

// Clean makes every text of an entry valid for the columns of any database: UTF-8, without NUL, bounded. What it cuts
// or replaces is still in the headers and the payload, which are bytes. Stores call it, because captures, spools,
// imports and collectors all end there.
func (e *Entry) Clean() {
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
