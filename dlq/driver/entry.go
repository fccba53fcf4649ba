package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/redrive-go/redrive/envelope"
)

// Entry is one dead letter as a [Store] keeps it: where the message came from, why it died, and what happened since.
// Listings carry entries without Body. Times are UTC with microseconds; a zero time means "not yet".
type Entry struct {
	// ID is given by the store. Zero before the entry is stored.
	ID int64
	// Key is the digest that makes one entry of one delivery, however often it is dead-lettered.
	Key Key

	// EventID is the message id, unchanged from the producer to here. Text without a length limit.
	EventID string
	// EventType is the event's name, or the topic when the message carries none. Never empty.
	EventType string
	// SourceTable and SourceID name the business record behind the event, when the message tells (see dlq.WithSource).
	SourceTable, SourceID string
	// CorrelationID ties the message to the others of its flow.
	CorrelationID string

	// Origin is where the message was consumed, and where a redrive sends it.
	Origin envelope.Origin
	// Handler is the name of the handler that gave up.
	Handler string

	// Reason, ErrorMessage, ErrorCode, ErrorClass (a Go type) and Rule (what classified it) tell of the last death.
	Reason                                    envelope.Reason
	ErrorMessage, ErrorCode, ErrorClass, Rule string
	// Cause is ErrorMessage without its numbers, ids and quoted values; Fingerprint is the group it puts the entry in.
	Cause, Fingerprint string
	// Attempts is how often the handler ran before the message died.
	Attempts int

	// Status is the entry's state, Version counts its changes from 1 and is what compare-and-set compares.
	Status  Status
	Version int64
	// RedriveCount is how often the entry was redriven, RedriveBudget how often it should be at most (3 by default).
	RedriveCount, RedriveBudget int
	// DeathRedrive is the number of the redrive that ended in the last recorded death; 0 is the original delivery.
	DeathRedrive int
	// RedriveOf is set on a dead letter on its way into the store that says it was redriven: the entry it belongs to.
	RedriveOf int64
	// SeenCount is how often this same death was reported; more than 1 after a crash or a lost confirm.
	SeenCount int
	// LeaseUntil is when a redrive whose outcome never came may be tried again.
	LeaseUntil time.Time
	// Run is the redrive run that last claimed the entry.
	Run string

	// CreatedAt is the first death. FirstFailureAt is the first failed attempt before it, DiedAt the last death.
	CreatedAt, FirstFailureAt, DiedAt, LastSeenAt time.Time
	// LastRedriveAt, SucceededAt and ResolvedAt are set by the redrive, by its success, and by whatever closed the
	// entry.
	LastRedriveAt, SucceededAt, ResolvedAt time.Time
	// ResolvedBy is who closed it: an operator, or "redrive".
	ResolvedBy string
	// ChangedAt and ChangedBy say when and by whom the status was last changed: who won, for the one who comes second.
	ChangedAt time.Time
	ChangedBy string

	// Revision is the number of the body that a redrive would send.
	Revision int
	// Size is that body's payload in bytes.
	Size int64
	// Body is the message itself. Nil in listings.
	Body *Body
}

// Overdue reports whether the entry was redriven and its outcome has not come in time: it may be redriven, resolved or
// discarded again.
func (e *Entry) Overdue(now time.Time) bool {
	return e.Status == Retrying && !now.Before(e.LeaseUntil)
}

// Key identifies a delivery: the same delivery dead-lettered twice has the same key.
type Key [sha256.Size]byte

// String returns the key as 64 hex digits.
func (k Key) String() string { return hex.EncodeToString(k[:]) }
