package driver

import (
	"context"
	"time"
)

// Clock is a [Store] with a clock that all its processes have in common, wherever they run.
type Clock interface {
	Store
	// Now returns the time of the store. It has no error: a store that does not answer says so to the call that needs
	// the time.
	Now(ctx context.Context) time.Time
}

// Now returns the time by which everything is decided that processes on one store share: leases, claims, what has run
// out, and the stamps of changes. It is the store's, for two machines' clocks differ; that of the process where the
// store has none.
func Now(ctx context.Context, s Store) time.Time {
	if clock, ok := As[Clock](s); ok {
		return clock.Now(ctx)
	}
	return time.Now()
}
