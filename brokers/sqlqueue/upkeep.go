package sqlqueue

import (
	"context"
	"time"

	"github.com/redrive-go/redrive/internal/wait"
)

// tendInterval bounds how long claims are slow after the table has suddenly grown.
const tendInterval = 3 * time.Second

// tend maintains the table's statistics, and checks that the queues being read still exist.
func (t *transport) tend(ctx context.Context) {
	for wait.For(ctx, tendInterval) == nil {
		if err := t.store.maintain(ctx, t.db); err != nil && ctx.Err() == nil {
			t.cfg.Logger.DebugContext(ctx, "sqlqueue: the table's statistics could not be maintained", "error", err)
		}
		if err := t.reads.look(ctx, t.store); err != nil && ctx.Err() == nil {
			t.cfg.Logger.DebugContext(ctx, "sqlqueue: the queues being read could not be checked", "error", err)
		}
	}
}

// purge removes expired messages from the archive.
func (t *transport) purge(ctx context.Context) {
	for wait.For(ctx, min(max(t.store.retention/10, 100*time.Millisecond), time.Minute)) == nil {
		for {
			n, err := t.store.purge(ctx)
			if err != nil && ctx.Err() == nil {
				t.cfg.Logger.WarnContext(ctx, "sqlqueue: acked messages could not be purged", "error", err)
			}
			if err != nil || n == 0 {
				break
			}
		}
	}
}
