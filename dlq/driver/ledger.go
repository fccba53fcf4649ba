package driver

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/internal/text"
)

// LedgerStore is a [Store] that counts the messages that a person sends, over all processes and ways of sending.
type LedgerStore interface {
	Store
	// Reserve records that a person is about to send, unless that would exceed the limit within the window: then it
	// returns false and records nothing. Open reservations count whatever their age. Reserving a key again replaces its
	// reservation. Concurrent calls for one person are serialized, across all processes.
	Reserve(ctx context.Context, r Reservation) (bool, error)
	// Unreserve removes a reservation, because nothing was sent. A missing key is not an error.
	Unreserve(ctx context.Context, key string) error
}

// Reservation is what someone is about to send.
type Reservation struct {
	// Key names it: "run <id>" for a run, which the store closes when the run ends. Required.
	Key string
	// Actor is who sends. Required.
	Actor string
	// Entries is how many; with the others of the Window before At they may be at most Limit.
	Entries, Limit int64
	At             time.Time
	Window         time.Duration
	// Open means that it is sent over time: it counts until it is closed.
	Open bool
}

// Validate reports what is missing in the reservation.
func (r *Reservation) Validate() error {
	if r.Key == "" || Person(r.Actor) == "" || r.At.IsZero() || r.Window <= 0 || r.Entries < 0 || r.Limit < 0 {
		return fmt.Errorf("%w: a reservation needs a key, an actor, a time and a window", ErrInvalid)
	}
	return nil
}

// maxPerson fits the columns of all databases.
const maxPerson = 240

// Person normalizes an actor's name for comparing persons: case and surrounding spaces do not matter.
func Person(actor string) string {
	return text.Clean(strings.ToLower(strings.TrimSpace(actor)), maxPerson)
}

// RunKey is the key of a run's reservation.
func RunKey(id string) string { return "run " + id }
