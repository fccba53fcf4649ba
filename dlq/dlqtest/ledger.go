package dlqtest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// ledger returns the ledger of a store.
func ledger(t *testing.T, s Store) driver.LedgerStore {
	t.Helper()
	l, ok := driver.As[driver.LedgerStore](s)
	require.True(t, ok, "%T does not count the entries that a person redrives", s)
	return l
}

// The entries that a person redrives count within a window, regardless of case and spaces in the name, and open
// reservations count until they are settled.
func testLedger(t *testing.T, db Database) {
	t.Helper()
	l := ledger(t, db.open(t))
	reserve := func(key, actor string, entries int64, at time.Time, open bool) bool {
		t.Helper()
		ok := must(l.Reserve(t.Context(), driver.Reservation{
			Key: key, Actor: actor, Entries: entries, Limit: 10, At: at, Window: time.Hour, Open: open,
		}))(t)
		return ok
	}
	require.True(t, reserve("a", "ana", 6, noon, false))
	require.False(t, reserve("b", "ana", 5, noon.Add(time.Minute), false))
	require.False(t, reserve("b", " ANA ", 5, noon.Add(time.Minute), false), "case and spaces do not make a second person")
	require.True(t, reserve("c", "bob", 10, noon.Add(time.Minute), false), "each person has a separate limit")
	require.True(t, reserve("b", "ana", 4, noon.Add(time.Minute), true), "a refused reservation does not count")
	require.True(t, reserve("b", "ana", 4, noon.Add(time.Minute), true), "the same key is the same reservation")
	require.False(t, reserve("d", "ana", 1, noon.Add(time.Minute), false))
	require.NoError(t, l.Unreserve(t.Context(), "a"))
	require.NoError(t, l.Unreserve(t.Context(), "a"))
	require.True(t, reserve("d", "ana", 6, noon.Add(time.Minute), false))
	later := noon.Add(3 * time.Hour)
	require.False(t, reserve("e", "ana", 7, later, false), "an open reservation counts at any age")
	require.True(t, reserve("e", "ana", 6, later, false), "a settled one counts within the window")
	require.True(t, reserve("none", "ana", 0, later, false))
	_, err := l.Reserve(t.Context(), driver.Reservation{Key: "x", Actor: " ", At: noon, Window: time.Hour})
	require.ErrorIs(t, err, dlq.ErrInvalid)
	require.True(t, reserve("é😀", "Éva 😀 \xff", 1, later, false))
}

// Concurrent requests never exceed the limit.
func testLedgerConcurrent(t *testing.T, db Database) {
	t.Helper()
	stores := []driver.LedgerStore{ledger(t, db.open(t)), ledger(t, db.open(t))}
	var granted atomic.Int64
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			ok, err := stores[i%2].Reserve(t.Context(), driver.Reservation{
				Key: fmt.Sprint("entry ", i), Actor: "ana", Entries: 1, Limit: 7, At: noon, Window: time.Hour,
			})
			if assert.NoError(t, err) && ok {
				granted.Add(1)
			}
		})
	}
	wg.Wait()
	require.Equal(t, int64(7), granted.Load())
}

// The end of a run closes its reservation: entries that it has started still count, the rest do not.
func testLedgerRun(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	l := ledger(t, s)
	putMany(t, s, 0, 5)
	r := newRun(t, s, redrive.Spec{ID: "run-1"}, 100)
	room := func(n int64, at time.Time) bool {
		t.Helper()
		ok := must(l.Reserve(t.Context(), driver.Reservation{
			Key: "probe", Actor: "ana", Entries: n, Limit: 10, At: at, Window: time.Hour,
		}))(t)
		require.NoError(t, l.Unreserve(t.Context(), "probe"))
		return ok
	}
	ok := must(l.Reserve(t.Context(), driver.Reservation{
		Key: driver.RunKey(r.ID), Actor: "ana", Entries: 5, Limit: 10, At: noon, Window: time.Hour, Open: true,
	}))(t)
	require.True(t, ok)
	require.False(t, room(6, noon.Add(9*time.Hour)))
	require.Len(t, claimAll(t, s, r.ID, noon, 2), 2)
	run := must(s.Run(t.Context(), r.ID))(t)
	require.Equal(t, int64(2), run.Counts.Started())
	started := run.Counts.Started()
	run.Version++
	run.State, run.ChangedAt = redrive.Cancelled, noon.Add(10*time.Hour)
	cancelled := driver.AuditRecord{At: run.ChangedAt, Actor: "ana", Action: redrive.ActionCancel, Run: run.ID}
	require.NoError(t, s.ChangeRun(t.Context(), run, cancelled))
	require.True(t, room(10-started, noon.Add(10*time.Hour)))
	require.False(t, room(11-started, noon.Add(10*time.Hour)))
}

// The entries of a run are counted by topic and by cause.
func testSplitRun(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	putMany(t, s, 0, 5)
	r := newRun(t, s, redrive.Spec{ID: "run-1"}, 100)
	topics, causes, err := s.SplitRun(t.Context(), r.ID, 20)
	require.NoError(t, err)
	var inTopics, inCauses int64
	for _, n := range topics {
		require.NotEmpty(t, n.Topic)
		inTopics += n.Count
	}
	for _, c := range causes {
		require.NotEmpty(t, c.Fingerprint)
		require.NotEmpty(t, c.Cause)
		inCauses += c.Count
	}
	require.Equal(t, []int64{5, 5}, []int64{inTopics, inCauses})
	_, causes, err = s.SplitRun(t.Context(), r.ID, 1)
	require.NoError(t, err)
	require.Len(t, causes, 1)
	topics, causes, err = s.SplitRun(t.Context(), "none", 20)
	require.NoError(t, err)
	require.Empty(t, topics)
	require.Empty(t, causes)
}
