// Package patience ends programs that make no progress. A timeout for the whole run would also end slow ones.
package patience

import (
	"context"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/internal/wait"
)

// Context returns a copy of parent that ends when far has returned the same value for d, at the latest after twice
// that.
func Context(parent context.Context, d time.Duration, far func() int) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	go func() {
		look := time.NewTicker(max(d, time.Nanosecond))
		defer look.Stop()
		defer cancel()
		for last, now := -1, far(); now != last; last, now = now, far() {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
		}
	}()
	return ctx, cancel
}

// Spool waits until the spooled letters are in the store, as long as there is progress within d.
func Spool(parent context.Context, d time.Duration, letters *dlq.Letters) {
	waiting := func() int { return int(letters.Stats().Bytes) }
	ctx, cancel := Context(parent, d, waiting)
	defer cancel()
	for waiting() > 0 {
		if wait.For(ctx, 10*time.Millisecond) != nil {
			return
		}
	}
}
