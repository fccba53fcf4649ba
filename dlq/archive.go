package dlq

import (
	"context"
	"fmt"

	"github.com/redrive-go/redrive/dlq/driver"
)

// Unarchive restores purged entries from the archive unchanged, and returns the ids of those restored. They can then be
// restored to PENDING and redriven.
func (m *Manager) Unarchive(ctx context.Context, by By, ids ...int64) ([]int64, error) {
	store, ok, err := optional[driver.ArchiveStore](ctx, m.cfg.Store)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("dlq: unarchive: %w: this store has no archive", ErrInvalid)
	}
	return store.Unarchive(ctx, by, m.Now(ctx), ids...)
}
