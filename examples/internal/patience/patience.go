// Package patience ends what does not get any further. A time for the whole would end what is only slow.
package patience

import (
	"context"
	"time"

	"github.com/redrive-go/redrive/dlq"
)

// Context returns a copy of parent that ends when far has returned the same for d, at the latest twice that.
func Context(parent context.Context, d time.Duration, far func() int) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	go func() {
		look := time.NewTicker(max(d, time.Nanosecond))
		defer look.Stop()
		for last := far(); ; {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			now := far()
			if now == last {
				cancel()
			}
			last = now
		}
	}()
	return ctx, cancel
}

// Spool waits until the store has what it did not take in time, as long as it takes something within d.
func Spool(parent context.Context, d time.Duration, letters *dlq.Letters) {
	waiting := func() int { return int(letters.Stats().Bytes) }
	ctx, cancel := Context(parent, d, waiting)
	defer cancel()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for waiting() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}
