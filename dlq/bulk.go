package dlq

import (
	"context"
	"errors"
	"fmt"

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
