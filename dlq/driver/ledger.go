package driver

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/internal/text"
)

// LedgerStore is a [Store] that counts what a person sends, whichever way it is sent and whichever process sends it.
type LedgerStore interface {
	Store
	// Reserve enters that a person is about to send, unless that makes more than the limit within the window: then it
	// returns false and enters nothing. What is open counts however old it is. Reserving a key again replaces what was
	// reserved under it. Two calls for one person at once are one behind the other, in all processes.
	Reserve(ctx context.Context, r Reservation) (bool, error)
	// Unreserve removes what was reserved under a key, because nothing was sent. A key that is not there is no error.
	Unreserve(ctx context.Context, key string) error
}

// Reservation is what somebody is about to send.
type Reservation struct {
	// Key names it: "run <id>" for a run, which a store settles when the run ends. Required.
	Key string
	// Actor is who sends. Required.
	Actor string
	// Entries is how many, at most Limit with everything else of the last Window before At.
	Entries, Limit int64
	At             time.Time
	Window         time.Duration
	// Open means that it is sent over time: it counts until it is settled.
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

// Person is an actor's identity where persons are compared: case and spaces around a name make no second person.
func Person(actor string) string {
	return text.Clean(strings.ToLower(strings.TrimSpace(actor)), maxPerson)
}

// RunKey is the key of a run's reservation.
func RunKey(id string) string { return "run " + id }
