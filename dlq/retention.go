package dlq

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// Retention is how long closed entries are kept. Entries that are not closed are kept forever.
type Retention struct {
	// Resolved and Discarded are how long after they were closed entries of that status are kept. Zero keeps them forever.
	Resolved  time.Duration `yaml:"resolved" jsonschema:"example=90d"`
	Discarded time.Duration `yaml:"discarded"`
	// SkipArchive removes without a copy.
	SkipArchive bool `yaml:"no_archive"`
	// Actor is the name in the audit log. Defaults to "retention".
	Actor string `yaml:"-"`
}

// CompleteSince returns the time since which the store has every death. The store counts the entries that it still has,
// so the numbers of earlier hours may be too low.
func (r Retention) CompleteSince(now time.Time) (since time.Time) {
	for _, keep := range []time.Duration{r.Resolved, r.Discarded} {
		if kept := now.Add(-keep); keep > 0 && kept.After(since) {
			since = kept
		}
	}
	return since
}

// Retain purges the entries that the retention no longer keeps, and returns their number. Call it regularly, in any
// number of processes; it works in transactions of at most [driver.MaxPage] entries, and stops when the context ends.
func (m *Manager) Retain(ctx context.Context, r Retention) (int, error) {
	if r.Resolved < 0 || r.Discarded < 0 {
		return 0, fmt.Errorf("dlq: retention: %w: a time to keep must not be negative", ErrInvalid)
	}
	r.Actor = cmp.Or(r.Actor, "retention")
	now, total := m.Now(ctx), 0
	for _, c := range []struct {
		status Status
		keep   time.Duration
	}{{Resolved, r.Resolved}, {Discarded, r.Discarded}} {
		if c.keep == 0 {
			continue
		}
		n, err := m.Purge(ctx, Purge{
			Statuses: []Status{c.status}, ClosedBefore: now.Add(-c.keep), SkipArchive: r.SkipArchive, At: now,
			Actor: r.Actor, Note: fmt.Sprintf("%s entries are kept for %s", c.status, c.keep),
		})
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}
