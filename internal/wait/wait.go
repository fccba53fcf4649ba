// Package wait is the only implementation of waiting and backoff in this module.
package wait

import (
	"context"
	"math/rand/v2"
	"time"
)

// For waits for d and returns nil, or returns the cause of ctx's end as soon as it ends. With a d of 0 or less it does
// not wait.
func For(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Signal sends to a channel of capacity 1 whose reader only needs to know that something has happened.
func Signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Backoff is a pause that doubles with each consecutive failure.
type Backoff struct {
	First, Longest time.Duration
}

// After returns the pause after n consecutive failures: First after one, zero after none.
func (b Backoff) After(n int) time.Duration {
	if n <= 0 {
		return 0
	}
	if n > 30 || b.First > b.Longest>>(n-1) {
		return max(b.Longest, b.First)
	}
	return b.First << (n - 1)
}

// Spread returns the pause after n failures, shortened at random by up to half, so that processes do not retry in step.
func (b Backoff) Spread(n int) time.Duration {
	d := b.After(n)
	if d <= 1 {
		return d
	}
	return d - rand.N(d/2) //nolint:gosec // G404: spreads load, keeps no secret
}
