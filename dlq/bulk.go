package dlq

import (
	"context"
	"errors"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/text"
)

// bulkBatch is how many entries one transaction of a bulk change has.
const bulkBatch = 500

// Bulk is what happened to the entries of a bulk change.
type Bulk struct {
	// Changed were changed. Refused were in another state by then: somebody else was faster.
	Changed, Refused int64
	// Conflicts are the first of the refusals, at most 100, each an error that names who was faster.
	Conflicts []error
}

const maxConflicts = 100

// ResolveAll resolves every entry that the filter picks; see [Manager.Resolve]. By.Version is not looked at. On an
// error those before are changed: to repeat the call is safe.
func (m *Manager) ResolveAll(ctx context.Context, f Filter, by By) (Bulk, error) {
	return m.changeAll(ctx, f, driver.ActionResolve, by)
}

// DiscardAll discards every entry that the filter picks; see [Manager.ResolveAll].
func (m *Manager) DiscardAll(ctx context.Context, f Filter, by By) (Bulk, error) {
	return m.changeAll(ctx, f, driver.ActionDiscard, by)
}

// RestoreAll restores every entry that the filter picks; see [Manager.ResolveAll].
func (m *Manager) RestoreAll(ctx context.Context, f Filter, by By) (Bulk, error) {
	return m.changeAll(ctx, f, driver.ActionRestore, by)
}

// ParkAll parks every entry that the filter picks; see [Manager.ResolveAll].
func (m *Manager) ParkAll(ctx context.Context, f Filter, by By) (Bulk, error) {
	return m.changeAll(ctx, f, driver.ActionPark, by)
}

// changeAll takes entries that are in a state for the action when the filter names no states, so that "discard this
// group" does not count what was resolved long ago as refused.
func (m *Manager) changeAll(ctx context.Context, f Filter, action driver.Action, by By) (Bulk, error) {
	if len(f.Statuses) == 0 {
		f.Statuses = []Status{Pending, Parked}
		if action == driver.ActionRestore {
			f.Statuses = []Status{Resolved, Discarded, Parked}
		}
		if action == driver.ActionPark {
			f.Statuses = []Status{Pending}
		}
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
