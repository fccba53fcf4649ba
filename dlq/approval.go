package dlq

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq/driver"
)

// Approval bounds how many messages one person may send without a second one, whichever way: one by one, edited, or by
// runs. It is counted in the store, by the name of the actor, for all processes.
type Approval struct {
	// Above is how many messages one person may send alone within Window. With 0 everything waits for a second person.
	Above int64
	// Window is for how long a message counts. Defaults to 24 h. A run counts until its end at least.
	Window time.Duration
}

const defaultApprovalWindow = 24 * time.Hour

// Resolve fills the defaults in.
func (a Approval) Resolve() (Approval, error) {
	a.Window = cmp.Or(a.Window, defaultApprovalWindow)
	if a.Above < 0 || a.Window < 0 {
		return a, fmt.Errorf("%w: approval above %d in %s: must not be negative", ErrInvalid, a.Above, a.Window)
	}
	return a, nil
}

// Reserve enters in the store's ledger that an actor is about to send, and reports whether that is within the limit.
// Limit, window and time of the reservation are set here.
func (a Approval) Reserve(ctx context.Context, store Store, r driver.Reservation) (bool, error) {
	ledger, ok := driver.As[driver.LedgerStore](store)
	if !ok {
		return false, fmt.Errorf("%w: %T does not count what a person sends, so no one may send without approval", ErrInvalid,
			store)
	}
	r.Limit, r.Window, r.At = a.Above, a.Window, driver.Now(ctx, store)
	return ledger.Reserve(ctx, r)
}

// Unreserve takes a reservation back: nothing was sent.
func (a Approval) Unreserve(ctx context.Context, store Store, key string) error {
	ledger, ok := driver.As[driver.LedgerStore](store)
	if !ok {
		return nil
	}
	return ledger.Unreserve(ctx, key)
}

// reserve enters one message, and returns what takes it back.
func (m *Manager) reserve(ctx context.Context, id int64, by By) (undo func(), err error) {
	a := m.cfg.Approval
	if a == nil {
		return func() {}, nil
	}
	if by.Actor == "" {
		return nil, fmt.Errorf("dlq: redrive entry %d: %w: no actor: say who does it", id, ErrInvalid)
	}
	key := "entry " + uuid.NewString()
	granted, err := a.Reserve(ctx, m.cfg.Store, driver.Reservation{Key: key, Actor: by.Actor, Entries: 1})
	if err != nil {
		return nil, err
	}
	if !granted {
		return nil, fmt.Errorf("dlq: redrive entry %d: %w: %s may send %d messages in %s alone: start a run, which "+
			"somebody else approves",
			id, ErrForbidden, by.Actor, a.Above, a.Window)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.PublishTimeout)
		defer cancel()
		if err := a.Unreserve(ctx, m.cfg.Store, key); err != nil {
			m.cfg.Logger.WarnContext(ctx, "a message that was not sent counts as sent", "entry_id", id, "actor", by.Actor,
				"error", err)
		}
	}, nil
}

// MaySend reports whether somebody may send an entry alone, as an error that wraps [ErrForbidden] when not: for callers
// that would do something else first, such as an edit.
func (m *Manager) MaySend(ctx context.Context, id int64, by By) error {
	undo, err := m.reserve(ctx, id, by)
	if err == nil {
		undo()
	}
	return err
}
