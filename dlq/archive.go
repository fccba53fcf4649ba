package dlq

import (
	"context"
	"fmt"
	"time"
)

// ActionUnarchive brought a purged entry back from the archive.
const ActionUnarchive Action = "unarchive"

// ArchiveStore is a [Store] that can bring back what it has purged into its archive.
type ArchiveStore interface {
	Store
	// Unarchive moves entries from the archive back, as they were, with their ids, and records it in the audit log. It returns the
	// ids of those that are back. Left out are those that are not in the archive, and those of a delivery that has been
	// dead-lettered again since.
	Unarchive(ctx context.Context, by By, at time.Time, ids ...int64) ([]int64, error)
}

// Unarchive brings purged entries back from the archive, as they were, and returns the ids of those that are back. They can be
// restored to PENDING then, and redriven.
func (m *Manager) Unarchive(ctx context.Context, by By, ids ...int64) ([]int64, error) {
	store, ok := as[ArchiveStore](m.store)
	if !ok {
		return nil, fmt.Errorf("dlq: unarchive: %w: this store has no archive", ErrInvalid)
	}
	return store.Unarchive(ctx, by, time.Now(), ids...)
}
