// Package dlqtest is the conformance suite for stores of dead letters. A store of your own that passes [Run] works with
// the rest of package dlq.
package dlqtest

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
)

// Store is what the suite tests: a store of dead letters that also stores redrive runs.
type Store interface {
	dlq.Store
	redrive.Store
}

// Database is one database. Each call opens another store on it, as another process would; the suite closes them.
type Database func(t *testing.T) Store

// Run runs the suite. fresh is called for each test and returns an empty database.
func Run(t *testing.T, fresh func(t *testing.T) Database) {
	t.Helper()
	for method := range reflect.TypeFor[*world]().Methods() {
		if name, ok := strings.CutPrefix(method.Name, "Test"); ok {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, fresh(t))
				w.fresh = fresh
				method.Func.Interface().(func(*world))(w)
			})
		}
	}
}

// world is the environment of one case: a database, a store on it, and the helpers of the suite. The methods that begin
// with Test are the cases.
type world struct {
	*testing.T
	Store

	db    Database
	fresh func(t *testing.T) Database // another one
}

func newWorld(t *testing.T, db Database) *world {
	t.Helper()
	w := &world{T: t, db: db}
	w.Store = w.open()
	return w
}

// open opens another store on the database, as another process would. It is closed when the case ends.
func (w *world) open() Store {
	w.Helper()
	s := w.db(w.T)
	w.Cleanup(func() { require.NoError(w, s.Close()) })
	return s
}

func (w *world) on(s Store) *world { return &world{w.T, s, w.db, w.fresh} }

// Run returns a redrive run; subtests are T's.
func (w *world) Run(ctx context.Context, id string) (*redrive.Run, error) {
	return w.Store.Run(ctx, id)
}

// RunClocks runs the cases, in addition to those of [Run], for a store on a server that is used from machines with
// different clocks. fresh is the same as for Run.
func RunClocks(t *testing.T, fresh func(t *testing.T) Database) {
	t.Helper()
	for name, test := range map[string]func(*world){
		"OneClock": testOneClock, "LeaseLasts": testLeaseLasts, "LeaseExpires": testLeaseExpires,
		"ClaimLasts":     testClaimLasts,
		"NoticesAreHeld": testNoticesAreHeld, "ResentIsNotLost": testResentIsNotLost,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newWorld(t, fresh(t)))
		})
	}
}

// wrong is how far the processes' clocks differ from the database's.
const wrong = 10 * time.Minute

// skewed runs a process whose clock is off by that much, in a synctest bubble.
func (w *world) skewed(by time.Duration, run func(w *world)) {
	w.Helper()
	wall := time.Now()
	synctest.Test(w.T, func(t *testing.T) {
		time.Sleep(time.Until(wall.Add(by))) // virtual
		synctest.Wait()
		run(newWorld(t, w.db))
	})
}

func (w *world) now() time.Time { return driver.Now(w.Context(), w.Store) }

// lease takes over a run.
func (w *world) lease(run, holder string, lasts time.Duration) error {
	_, err := w.LeaseRun(w.Context(), run, holder, w.now(), lasts)
	return err
}

// All processes use the time of the store.
func testOneClock(w *world) {
	for _, by := range []time.Duration{-wrong, 0, wrong, 0} {
		began := time.Now()
		w.skewed(by, func(p *world) {
			now := p.now()
			require.WithinDuration(p, began, now, wrong/2, "a clock that is off by %s", by)
			require.Equal(p, time.UTC, now.Location())
		})
	}
}

// A process whose clock is ahead does not take over a run from one whose clock is behind.
func testLeaseLasts(w *world) {
	_, run := w.freeRun()
	w.skewed(-wrong, func(p *world) { require.NoError(p, p.lease(run, "slow", wrong)) })
	w.skewed(wrong, func(p *world) { require.ErrorIs(p, p.lease(run, "fast", wrong), redrive.ErrLeaseLost) })
	w.skewed(-wrong, func(p *world) { require.NoError(p, p.lease(run, "slow", wrong), "it is extended") })
}

// A process whose clock is behind does not wait longer for the run of one whose clock is ahead.
func testLeaseExpires(w *world) {
	_, run := w.freeRun()
	w.skewed(wrong, func(p *world) { require.NoError(p, p.lease(run, "fast", time.Microsecond)) })
	w.skewed(-wrong, func(p *world) { require.NoError(p, p.lease(run, "slow", time.Minute)) })
}

// A process whose clock is ahead does not treat the claims and redrives in flight of one whose clock is behind as lost.
func testClaimLasts(w *world) {
	_, run := w.freeRun()
	w.skewed(-wrong, func(p *world) {
		require.NoError(p, p.lease(run, holder, wrong))
		require.Len(p, p.claimAll(run, p.now(), 3), 3)
		require.NoError(p, p.lease(run, holder, 0))
	})
	w.skewed(wrong, func(p *world) {
		require.NoError(p, p.lease(run, "fast", wrong))
		at := p.now()
		r, n, err := p.SettleRun(p.Context(), run, "fast", at, driver.MaxPage)
		require.NoError(p, err)
		require.Zero(p, n)
		require.Equal(p, redrive.Counts{Claimed: 3}, r.Counts)
		for _, item := range p.itemsOf(run, redrive.ItemClaimed) {
			require.False(p, p.get(item.EntryID).Overdue(at))
		}
	})
}

// Only one process notifies, whatever the other's clock shows.
func testNoticesAreHeld(w *world) {
	hold := func(name string, by, lasts time.Duration) (held bool) {
		w.skewed(by, func(p *world) {
			at := p.now()
			held = must(required[driver.NoticeStore](p).HoldNotices(p.Context(), name, at, at.Add(lasts)))(p)
		})
		return held
	}
	require.True(w, hold("slow", -wrong, wrong))
	require.False(w, hold("fast", wrong, wrong))
	require.True(w, hold("slow", -wrong, 0))
	require.True(w, hold("fast", wrong, 0))
	require.True(w, hold("slow", -wrong, 0))
}

// A message that is sent again after its entry was closed, and dies again, is pending again, even if the clock of the
// process that reports its death is behind, or that of one that reported the success of its redrive was ahead. It
// counted as a death from before the closing, which was known.
func testResentIsNotLost(w *world) {
	for n, clocks := range []struct {
		death, success time.Duration
		collected      bool // the death has the time of another machine
	}{
		{death: -wrong},
		{death: wrong},
		{success: wrong},
		{death: -wrong, collected: true},
		{death: wrong, collected: true},
	} {
		on := func(by time.Duration, report func(p *world, l *dlq.Letters)) *dlq.Entry {
			w.skewed(by, func(p *world) {
				letters := must(dlq.NewLetters(p.db(p.T), dlq.WithoutSpool()))(p)
				report(p, letters)
				require.NoError(p, letters.Close())
			})
			found := w.all(dlq.Filter{})
			require.Len(w, found, n+1)
			is := func(e dlq.Entry) bool { return e.EventID == letter(n).EventID }
			return w.get(found[slices.IndexFunc(found, is)].ID)
		}
		die := func(p *world, l *dlq.Letters) {
			death := newDeath(n)
			death.At, death.Origin.Position = time.Now(), ""
			if clocks.collected {
				death.Collected.Broker, death.At = "kafka", death.At.Add(min(0, -clocks.death))
			}
			require.NoError(p, l.DeadLetter(p.Context(), death))
		}
		sent := w.claim(on(clocks.death, die).ID, w.now())
		on(clocks.success, func(p *world, l *dlq.Letters) {
			handled := envelope.RedrivenBy(dlq.RedriveMessage(sent), sent.Origin, time.Now())
			require.NoError(p, l.Redriven(p.Context(), handled))
		})
		require.Equal(w, dlq.Resolved, w.get(sent.ID).Status)
		require.Equal(w, dlq.Pending, on(clocks.death, die).Status, "%+v", clocks)
	}
}
