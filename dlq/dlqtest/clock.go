package dlqtest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// RunClocks runs the cases, in addition to those of [Run], for a store on a server that is used from machines with
// different clocks. fresh is the same as for Run.
func RunClocks(t *testing.T, fresh func(t *testing.T) Database) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, Database){
		"OneClock": testOneClock, "LeaseLasts": testLeaseLasts, "LeaseExpires": testLeaseExpires,
		"ClaimLasts":     testClaimLasts,
		"NoticesAreHeld": testNoticesAreHeld,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, fresh(t))
		})
	}
}

// wrong is how far the processes' clocks differ from the database's.
const wrong = 10 * time.Minute

// process is a process with a wrong clock.
type process struct {
	t     *testing.T
	store Store
}

// skewed runs a process whose clock is off by that much, in a synctest bubble.
func (db Database) skewed(t *testing.T, by time.Duration, run func(p process)) {
	t.Helper()
	wall := time.Now()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(wall.Add(by))) // virtual
		synctest.Wait()
		run(process{t, db.open(t)})
	})
}

func (p process) now() time.Time { return driver.Now(p.t.Context(), p.store) }

// lease takes over a run.
func (p process) lease(run, holder string, lasts time.Duration) error {
	_, err := p.store.LeaseRun(p.t.Context(), run, holder, p.now(), lasts)
	return err
}

// All processes use the time of the store.
func testOneClock(t *testing.T, db Database) {
	t.Helper()
	for _, by := range []time.Duration{-wrong, 0, wrong, 0} {
		began := time.Now()
		db.skewed(t, by, func(p process) {
			now := p.now()
			require.WithinDuration(p.t, began, now, wrong/2, "a clock that is off by %s", by)
			require.Equal(p.t, time.UTC, now.Location())
		})
	}
}

// runOf is a run of three entries that no process holds.
func runOf(t *testing.T, s Store) string {
	t.Helper()
	putMany(t, s, 0, 3)
	r := newRun(t, s, redrive.Spec{ID: "run-1"}, 10)
	must(s.LeaseRun(t.Context(), r.ID, holder, noon, 0))(t)
	return r.ID
}

// A process whose clock is ahead does not take over a run from one whose clock is behind.
func testLeaseLasts(t *testing.T, db Database) {
	t.Helper()
	run := runOf(t, db.open(t))
	db.skewed(t, -wrong, func(p process) { require.NoError(p.t, p.lease(run, "slow", wrong)) })
	db.skewed(t, wrong, func(p process) { require.ErrorIs(p.t, p.lease(run, "fast", wrong), redrive.ErrLeaseLost) })
	db.skewed(t, -wrong, func(p process) { require.NoError(p.t, p.lease(run, "slow", wrong), "it is extended") })
}

// A process whose clock is behind does not wait longer for the run of one whose clock is ahead.
func testLeaseExpires(t *testing.T, db Database) {
	t.Helper()
	run := runOf(t, db.open(t))
	db.skewed(t, wrong, func(p process) { require.NoError(p.t, p.lease(run, "fast", time.Microsecond)) })
	db.skewed(t, -wrong, func(p process) { require.NoError(p.t, p.lease(run, "slow", time.Minute)) })
}

// A process whose clock is ahead does not treat the claims and redrives in flight of one whose clock is behind as lost.
func testClaimLasts(t *testing.T, db Database) {
	t.Helper()
	run := runOf(t, db.open(t))
	db.skewed(t, -wrong, func(p process) {
		require.NoError(p.t, p.lease(run, holder, wrong))
		require.Len(p.t, claimAll(p.t, p.store, run, p.now(), 3), 3)
		require.NoError(p.t, p.lease(run, holder, 0))
	})
	db.skewed(t, wrong, func(p process) {
		require.NoError(p.t, p.lease(run, "fast", wrong))
		at := p.now()
		r, n, err := p.store.SettleRun(p.t.Context(), run, "fast", at, driver.MaxPage)
		require.NoError(p.t, err)
		require.Zero(p.t, n)
		require.Equal(p.t, redrive.Counts{Claimed: 3}, r.Counts)
		for _, item := range itemsOf(p.t, p.store, run, redrive.ItemClaimed) {
			require.False(p.t, get(p.t, p.store, item.EntryID).Overdue(at))
		}
	})
}

// Only one process notifies, whatever the other's clock shows.
func testNoticesAreHeld(t *testing.T, db Database) {
	t.Helper()
	hold := func(name string, by, lasts time.Duration) (held bool) {
		db.skewed(t, by, func(p process) {
			notices, ok := driver.As[driver.NoticeStore](p.store)
			require.True(p.t, ok)
			at := p.now()
			var err error
			held, err = notices.HoldNotices(p.t.Context(), name, at, at.Add(lasts))
			require.NoError(p.t, err)
		})
		return held
	}
	require.True(t, hold("slow", -wrong, wrong))
	require.False(t, hold("fast", wrong, wrong))
	require.True(t, hold("slow", -wrong, 0))
	require.True(t, hold("fast", wrong, 0))
	require.True(t, hold("slow", -wrong, 0))
}
