package dlqtest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// ledger returns the ledger of the store.
func (w *world) ledger() driver.LedgerStore {
	w.Helper()
	l, ok := driver.As[driver.LedgerStore](w.Store)
	require.True(w, ok, "%T does not count the entries that a person redrives", w.Store)
	return l
}

// The entries that a person redrives count within a window, regardless of case and spaces in the name, and open
// reservations count until they are settled.
func testLedger(w *world) {
	l := w.ledger()
	reserve := func(key, actor string, entries int64, at time.Time, open bool) bool {
		w.Helper()
		return must(l.Reserve(w.Context(), driver.Reservation{
			Key: key, Actor: actor, Entries: entries, Limit: 10, At: at, Window: time.Hour, Open: open,
		}))(w)
	}
	require.True(w, reserve("a", "ana", 6, noon, false))
	require.False(w, reserve("b", "ana", 5, noon.Add(time.Minute), false))
	require.False(w, reserve("b", " ANA ", 5, noon.Add(time.Minute), false), "case and spaces do not make a second person")
	require.True(w, reserve("c", "bob", 10, noon.Add(time.Minute), false), "each person has a separate limit")
	require.True(w, reserve("b", "ana", 4, noon.Add(time.Minute), true), "a refused reservation does not count")
	require.True(w, reserve("b", "ana", 4, noon.Add(time.Minute), true), "the same key is the same reservation")
	require.False(w, reserve("d", "ana", 1, noon.Add(time.Minute), false))
	require.NoError(w, l.Unreserve(w.Context(), "a"))
	require.NoError(w, l.Unreserve(w.Context(), "a"))
	require.True(w, reserve("d", "ana", 6, noon.Add(time.Minute), false))
	later := noon.Add(3 * time.Hour)
	require.False(w, reserve("e", "ana", 7, later, false), "an open reservation counts at any age")
	require.True(w, reserve("e", "ana", 6, later, false), "a settled one counts within the window")
	require.True(w, reserve("none", "ana", 0, later, false))
	_, err := l.Reserve(w.Context(), driver.Reservation{Key: "x", Actor: " ", At: noon, Window: time.Hour})
	require.ErrorIs(w, err, dlq.ErrInvalid)
	require.True(w, reserve("é😀", "Éva 😀 \xff", 1, later, false))
}

// Concurrent requests never exceed the limit.
func testLedgerConcurrent(w *world) {
	stores := []driver.LedgerStore{w.ledger(), w.on(w.open()).ledger()}
	var granted atomic.Int64
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			ok, err := stores[i%2].Reserve(w.Context(), driver.Reservation{
				Key: fmt.Sprint("entry ", i), Actor: "ana", Entries: 1, Limit: 7, At: noon, Window: time.Hour,
			})
			if assert.NoError(w, err) && ok {
				granted.Add(1)
			}
		})
	}
	wg.Wait()
	require.Equal(w, int64(7), granted.Load())
}

// The end of a run closes its reservation: entries that it has started still count, the rest do not.
func testLedgerRun(w *world) {
	l := w.ledger()
	w.putMany(0, 5)
	r := w.newRun(redrive.Spec{ID: "run-1"}, 100)
	room := func(n int64, at time.Time) bool {
		w.Helper()
		ok := must(l.Reserve(w.Context(), driver.Reservation{
			Key: "probe", Actor: "ana", Entries: n, Limit: 10, At: at, Window: time.Hour,
		}))(w)
		require.NoError(w, l.Unreserve(w.Context(), "probe"))
		return ok
	}
	ok := must(l.Reserve(w.Context(), driver.Reservation{
		Key: driver.RunKey(r.ID), Actor: "ana", Entries: 5, Limit: 10, At: noon, Window: time.Hour, Open: true,
	}))(w)
	require.True(w, ok)
	require.False(w, room(6, noon.Add(9*time.Hour)))
	require.Len(w, w.claimAll(r.ID, noon, 2), 2)
	run := must(w.Run(w.Context(), r.ID))(w)
	require.Equal(w, int64(2), run.Counts.Started())
	started := run.Counts.Started()
	run.Version++
	run.State, run.ChangedAt = redrive.Cancelled, noon.Add(10*time.Hour)
	cancelled := driver.AuditRecord{At: run.ChangedAt, Actor: "ana", Action: redrive.ActionCancel, Run: run.ID}
	require.NoError(w, w.ChangeRun(w.Context(), run, cancelled))
	require.True(w, room(10-started, noon.Add(10*time.Hour)))
	require.False(w, room(11-started, noon.Add(10*time.Hour)))
}

// The entries of a run are counted by topic and by cause.
func testSplitRun(w *world) {
	w.putMany(0, 5)
	r := w.newRun(redrive.Spec{ID: "run-1"}, 100)
	topics, causes, err := w.SplitRun(w.Context(), r.ID, 20)
	require.NoError(w, err)
	var inTopics, inCauses int64
	for _, n := range topics {
		require.NotEmpty(w, n.Topic)
		inTopics += n.Count
	}
	for _, c := range causes {
		require.NotEmpty(w, c.Fingerprint)
		require.NotEmpty(w, c.Cause)
		inCauses += c.Count
	}
	require.Equal(w, []int64{5, 5}, []int64{inTopics, inCauses})
	_, causes, err = w.SplitRun(w.Context(), r.ID, 1)
	require.NoError(w, err)
	require.Len(w, causes, 1)
	topics, causes, err = w.SplitRun(w.Context(), "none", 20)
	require.NoError(w, err)
	require.Empty(w, topics)
	require.Empty(w, causes)
}
