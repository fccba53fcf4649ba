package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/text"
)

// bulkBatch is the number of entries in one transaction of a bulk change.
const bulkBatch = 500

// Bulk is the result of a bulk change.
type Bulk struct {
	// Changed were changed. Refused had been moved to another state by someone else in the meantime.
	Changed, Refused int64
	// Conflicts are the first refusals, at most 100, as errors that name who was faster.
	Conflicts []error
}

const maxConflicts = 100

// ChangeAll resolves, discards, restores or parks every entry that the filter selects. If the filter names no states,
// it only changes entries in a state for the action, so that "discard this group" does not report entries that were
// resolved long ago as refused. It ignores By.Version. When it fails, the earlier entries have been changed: it is safe
// to call again.
func (m *Manager) ChangeAll(ctx context.Context, action driver.Action, f Filter, by By) (Bulk, error) {
	switch action {
	case driver.ActionResolve, driver.ActionDiscard, driver.ActionRestore, driver.ActionPark:
	default:
		return Bulk{}, fmt.Errorf("dlq: %w: %q is not an action on many entries", ErrInvalid, action)
	}
	if len(f.Statuses) == 0 {
		f.Statuses = driver.From(action)
	}
	var bulk Bulk
	var ids []int64
	flush := func() error {
		if len(ids) == 0 {
			return nil
		}
		results, err := m.cfg.Store.Change(ctx, driver.Change{
			Action: action, IDs: ids, Actor: by.Actor, Note: by.Note, ResolvedBy: text.Clean(by.ResolvedBy, text.MaxName),
			At: m.Now(ctx),
		})
		if err != nil {
			return err
		}
		for _, r := range results {
			switch {
			case r.Err == nil:
				bulk.Changed++
			case errors.Is(r.Err, ErrNotFound):
			default:
				bulk.Refused++
				if len(bulk.Conflicts) < maxConflicts {
					bulk.Conflicts = append(bulk.Conflicts, r.Err)
				}
			}
		}
		ids = ids[:0]
		return nil
	}
	err := m.each(ctx, f, func(e *Entry) error {
		if ids = append(ids, e.ID); len(ids) < bulkBatch {
			return nil
		}
		return flush()
	})
	if err != nil {
		return bulk, err
	}
	return bulk, flush()
}

// Retention is how long closed entries are kept. Entries that are not closed are kept forever.
type Retention struct {
	// Resolved and Discarded are how long after they were closed entries of that status are kept. Zero keeps them forever.
	Resolved  time.Duration `yaml:"resolved" jsonschema:"example=90d"`
	Discarded time.Duration `yaml:"discarded"`
	// SkipArchive removes without a copy.
	SkipArchive bool `yaml:"no_archive"`
	// Actor is the name in the audit log. Defaults to "retention".
	Actor string `yaml:"-"`
}

// CompleteSince returns the time since which the store has every death. The store counts the entries that it still has,
// so the numbers of earlier hours may be too low.
func (r Retention) CompleteSince(now time.Time) (since time.Time) {
	for _, keep := range []time.Duration{r.Resolved, r.Discarded} {
		if kept := now.Add(-keep); keep > 0 && kept.After(since) {
			since = kept
		}
	}
	return since
}

// Retain purges the entries that the retention no longer keeps, and returns their number. Call it regularly, in any
// number of processes; it works in transactions of at most [driver.MaxPage] entries, and stops when the context ends.
func (m *Manager) Retain(ctx context.Context, r Retention) (int, error) {
	if r.Resolved < 0 || r.Discarded < 0 {
		return 0, fmt.Errorf("dlq: retention: %w: a time to keep must not be negative", ErrInvalid)
	}
	r.Actor = cmp.Or(r.Actor, "retention")
	now, total := m.Now(ctx), 0
	for _, c := range []struct {
		status Status
		keep   time.Duration
	}{{Resolved, r.Resolved}, {Discarded, r.Discarded}} {
		if c.keep == 0 {
			continue
		}
		n, err := m.Purge(ctx, Purge{
			Statuses: []Status{c.status}, ClosedBefore: now.Add(-c.keep), SkipArchive: r.SkipArchive, At: now,
			Actor: r.Actor, Note: fmt.Sprintf("%s entries are kept for %s", c.status, c.keep),
		})
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

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
