package driver

import (
	"context"
	"time"
)

// Clock is a [Store] with a clock that is common to all processes.
type Clock interface {
	Store
	// Now returns the store's time. It has no error: if the store does not answer, the call that needs the time fails
	// anyway.
	Now(ctx context.Context) time.Time
}

// Now returns the time for decisions that processes on one store share: leases, claims, expiry, and the times of
// changes. It is the store's, because the clocks of machines differ; if the store has none, it is the process's.
func Now(ctx context.Context, s Store) time.Time {
	if clock, ok := As[Clock](s); ok {
		return clock.Now(ctx)
	}
	return time.Now()
}
