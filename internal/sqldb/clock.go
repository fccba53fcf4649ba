package sqldb

import (
	"context"
	"database/sql"
	"sync"
	"time"
)

const (
	clockEvery   = 10 * time.Second
	clockTimeout = time.Second
	clockTries   = 3
	// An answer that took longer than clockSlow is too old to set a clock by: the process or the network hung meanwhile.
	clockSlow = 250 * time.Millisecond
	// clockStep is how far the wall clock may drift from the monotonic one before the database is queried: the monotonic
	// clock stops while a machine sleeps.
	clockStep = time.Second
)

// Clock is a database's clock, shared by processes on many machines. It queries the database every ten seconds; in
// between it adds the process's monotonic clock, which is never adjusted.
type Clock struct {
	db      *sql.DB
	dialect Dialect

	mu     sync.Mutex
	server time.Time // the database's time
	local  time.Time // the process's time of that answer
	asking bool
}

// NewClock makes the clock of db. On SQLite it is the process's.
func NewClock(dialect Dialect, db *sql.DB) *Clock { return &Clock{db: db, dialect: dialect} }

// Now returns the time, in UTC. While the database does not answer, the last answer is extrapolated; before the first
// answer it is the process's time.
func (c *Clock) Now(ctx context.Context) time.Time {
	local := time.Now()
	if c.dialect == SQLite {
		return local.UTC().Round(0)
	}
	c.mu.Lock()
	ask := !c.asking && c.stale(local)
	c.asking = c.asking || ask
	c.mu.Unlock()
	if ask {
		c.ask(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server.IsZero() {
		return local.UTC().Round(0)
	}
	return c.server.Add(time.Since(c.local))
}

// stale reports whether the database has to be queried. The caller holds the lock.
func (c *Clock) stale(local time.Time) bool {
	age := local.Sub(c.local)
	step := local.Round(0).Sub(c.local.Round(0)) - age // Round strips the monotonic reading
	return c.server.IsZero() || age >= clockEvery || step.Abs() >= clockStep
}

// ask queries the database's clock. Of several slow answers the fastest counts; an error changes nothing.
func (c *Clock) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	var server, local time.Time
	best := time.Duration(-1)
	for range clockTries {
		var micros int64
		sent := time.Now()
		if c.db.QueryRowContext(ctx, "SELECT "+c.dialect.Now()).Scan(&micros) != nil {
			break
		}
		if took := time.Since(sent); best < 0 || took < best {
			best, server, local = took, time.UnixMicro(micros).UTC(), sent.Add(took/2)
		}
		if best < clockSlow {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asking = false; best >= 0 {
		c.server, c.local = server, local
	}
}
