package dlq

import (
	"context"
	"errors"

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

// ResolveAll resolves every entry that the filter selects; see [Manager.Resolve]. It ignores By.Version. When it fails,
// the earlier entries have been changed: it is safe to call again.
func (m *Manager) ResolveAll(ctx context.Context, f Filter, by By) (Bulk, error) {
	return m.changeAll(ctx, f, driver.ActionResolve, by)
}

// DiscardAll discards every entry that the filter selects; see [Manager.ResolveAll].
func (m *Manager) DiscardAll(ctx context.Context, f Filter, by By) (Bulk, error) {
	return m.changeAll(ctx, f, driver.ActionDiscard, by)
}

// RestoreAll restores every entry that the filter selects; see [Manager.ResolveAll].
func (m *Manager) RestoreAll(ctx context.Context, f Filter, by By) (Bulk, error) {
	return m.changeAll(ctx, f, driver.ActionRestore, by)
}

// ParkAll parks every entry that the filter selects; see [Manager.ResolveAll].
func (m *Manager) ParkAll(ctx context.Context, f Filter, by By) (Bulk, error) {
	return m.changeAll(ctx, f, driver.ActionPark, by)
}

// When the filter names no states, changeAll only changes entries in a state for the action, so that "discard this
// group" does not report entries that were resolved long ago as refused.
func (m *Manager) changeAll(ctx context.Context, f Filter, action driver.Action, by By) (Bulk, error) {
	if len(f.Statuses) == 0 {
		f.Statuses = action.From()
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
