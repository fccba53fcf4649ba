package dlq

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq/driver"
)

// Approval limits how many messages one person may send without a second person's approval, whether singly, edited, or
// in runs. The store counts them by the actor's name, over all processes.
type Approval struct {
	// Above is how many messages one person may send alone within Window. With 0 every redrive needs approval.
	Above int64
	// Window is how long a message counts. Defaults to 24 h. A run counts at least until it ends.
	Window time.Duration
}

const defaultApprovalWindow = 24 * time.Hour

// Resolve fills in the defaults.
func (a Approval) Resolve() (Approval, error) {
	a.Window = cmp.Or(a.Window, defaultApprovalWindow)
	if a.Above < 0 || a.Window < 0 {
		return a, fmt.Errorf("%w: approval above %d in %s: must not be negative", ErrInvalid, a.Above, a.Window)
	}
	return a, nil
}

// Reserve records in the store's ledger that an actor is about to send, and reports whether that is within the limit.
// It sets the reservation's limit, window and time.
func (a Approval) Reserve(ctx context.Context, store Store, r driver.Reservation) (bool, error) {
	ledger, err := required[driver.LedgerStore](ctx, store, fmt.Errorf(
		"%w: %T does not count what a person sends, so no one may send without approval", ErrInvalid, store))
	if err != nil {
		return false, err
	}
	r.Limit, r.Window, r.At = a.Above, a.Window, driver.Now(ctx, store)
	return ledger.Reserve(ctx, r)
}

// Unreserve cancels a reservation, because nothing was sent.
func (a Approval) Unreserve(ctx context.Context, store Store, key string) error {
	ledger, ok, err := optional[driver.LedgerStore](ctx, store)
	if err != nil || !ok {
		return err
	}
	return ledger.Unreserve(ctx, key)
}

// reserve reserves one message and returns a function that cancels it.
func (m *Manager) reserve(ctx context.Context, id int64, by By) (undo func(), err error) {
	a := m.cfg.Approval
	if a == nil {
		return func() {}, nil
	}
	if by.Actor == "" {
		return nil, fmt.Errorf("dlq: redrive entry %d: %w: no actor: name the person who does it", id, ErrInvalid)
	}
	key := "entry " + uuid.NewString()
	granted, err := a.Reserve(ctx, m.cfg.Store, driver.Reservation{Key: key, Actor: by.Actor, Entries: 1})
	if err != nil {
		return nil, err
	}
	if !granted {
		return nil, fmt.Errorf("dlq: redrive entry %d: %w: %s may send %d messages in %s alone: start a run, which "+
			"someone else approves",
			id, ErrForbidden, by.Actor, a.Above, a.Window)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.PublishTimeout)
		defer cancel()
		if err := a.Unreserve(ctx, m.cfg.Store, key); err != nil {
			m.cfg.Logger.WarnContext(ctx, "a message that was not sent still counts as sent", "entry_id", id, "actor", by.Actor,
				"error", err)
		}
	}, nil
}

// MaySend returns an error that wraps [ErrForbidden] when an actor may not send an entry alone. It is for callers that
// do something else first, such as an edit.
func (m *Manager) MaySend(ctx context.Context, id int64, by By) error {
	undo, err := m.reserve(ctx, id, by)
	if err == nil {
		undo()
	}
	return err
}
