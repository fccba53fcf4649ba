// Package storetest is the conformance suite for stores of package idempotency. Call [Run] from a test of your own
// store.
package storetest

import (
	"crypto/rand"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/middleware/idempotency"
)

// lease is short, because the suite waits for its end.
const lease = 150 * time.Millisecond

// patience is how long a busy machine may take.
const patience = 2 * time.Minute

// Run runs the suite as subtests of t. open creates an empty store, or returns one that several subtests share.
func Run(t *testing.T, open func(t *testing.T) idempotency.Store) {
	t.Helper()
	for method := range reflect.TypeFor[*world]().Methods() {
		if name, ok := strings.CutPrefix(method.Name, "Test"); ok {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := &world{t, open(t), idempotency.Key{Consumer: t.Name(), MessageID: "m"}}
				method.Func.Interface().(func(*world))(w)
			})
		}
	}
}

// world is the environment of one case. The methods that begin with Test are the cases.
type world struct {
	*testing.T
	idempotency.Store

	key idempotency.Key // of no other case
}

// claim claims the case's key.
func (w *world) claim(owner int64, d time.Duration) idempotency.Record {
	w.Helper()
	r, err := w.Claim(w.Context(), w.key, owner, d)
	require.NoError(w, err)
	return r
}

func (w *world) TestClaim_IsExclusiveUntilReleased() {
	require.Equal(w, idempotency.Claimed, w.claim(1, time.Minute).State)
	busy := w.claim(2, time.Minute)
	require.Equal(w, idempotency.Busy, busy.State)
	require.Greater(w, busy.Remaining, 30*time.Second)
	require.LessOrEqual(w, busy.Remaining, time.Minute)

	require.NoError(w, w.Release(w.Context(), w.key, 2), "releasing another owner's claim does nothing")
	require.Equal(w, idempotency.Busy, w.claim(2, time.Minute).State)
	require.NoError(w, w.Release(w.Context(), w.key, 1))
	require.Equal(w, idempotency.Claimed, w.claim(2, time.Minute).State)
	require.ErrorIs(w, w.Complete(w.Context(), w.key, 1, nil, time.Minute), idempotency.ErrLost)
}

func (w *world) TestClaim_OfManyAtOnceHasOneWinner() {
	require.EqualValues(w, 1, w.winners(20))
}

// TestLease_OfACrashedOwnerHasOneHeir lets many owners claim the key of a crashed one after its lease has ended.
func (w *world) TestLease_OfACrashedOwnerHasOneHeir() {
	for round := range 10 {
		w.key.MessageID = strconv.Itoa(round)
		w.claim(1, 0)
		require.EqualValues(w, 1, w.winners(8))
	}
}

// winners lets n owners, from 2 on, claim the key at once, and returns how many of them succeed.
func (w *world) winners(n int64) int32 {
	var winners atomic.Int32
	var all sync.WaitGroup
	start := make(chan struct{})
	for owner := range n {
		all.Go(func() {
			<-start
			if r, err := w.Claim(w.Context(), w.key, 2+owner, time.Minute); err == nil && r.State == idempotency.Claimed {
				winners.Add(1)
			}
		})
	}
	close(start)
	all.Wait()
	return winners.Load()
}

func (w *world) TestComplete_IsRememberedWithItsResult() {
	outcome := []byte("\x00\xff result")
	w.claim(1, time.Minute)
	require.NoError(w, w.Complete(w.Context(), w.key, 1, outcome, time.Hour))
	require.NoError(w, w.Complete(w.Context(), w.key, 1, outcome, time.Hour), "the owner may repeat it")
	done := w.claim(2, time.Minute)
	require.Equal(w, idempotency.Done, done.State)
	require.Equal(w, outcome, done.Outcome)

	require.NoError(w, w.Release(w.Context(), w.key, 1))
	require.Equal(w, idempotency.Done, w.claim(2, time.Minute).State, "a key that is done stays done")
	require.ErrorIs(w, w.Renew(w.Context(), w.key, 1, time.Minute), idempotency.ErrLost)
}

func (w *world) TestLease_OfACrashedOwnerEnds() {
	w.claim(1, time.Minute)
	require.Equal(w, idempotency.Busy, w.claim(2, time.Minute).State)
	w.key.MessageID += "-crashed"
	w.claim(1, lease)
	require.Eventually(w, func() bool {
		return w.claim(2, time.Minute).State == idempotency.Claimed
	}, patience, 10*time.Millisecond)
	require.ErrorIs(w, w.Renew(w.Context(), w.key, 1, time.Minute), idempotency.ErrLost)
	require.ErrorIs(w, w.Complete(w.Context(), w.key, 1, nil, time.Minute), idempotency.ErrLost)
}

func (w *world) TestLease_IsRenewed() {
	w.claim(1, 10*time.Second)
	require.NoError(w, w.Renew(w.Context(), w.key, 1, time.Minute))
	busy := w.claim(2, time.Minute)
	require.Equal(w, idempotency.Busy, busy.State)
	require.Greater(w, busy.Remaining, 30*time.Second)
}

func (w *world) TestRetention_Ends() {
	w.claim(1, time.Minute)
	require.NoError(w, w.Complete(w.Context(), w.key, 1, nil, lease))
	require.Eventually(w, func() bool {
		return w.claim(2, time.Minute).State == idempotency.Claimed
	}, patience, 10*time.Millisecond)
}

func (w *world) TestKeys_OfAnyTextAreKeptApart() {
	long := rand.Text()
	for len(long) < 5000 { // no column and no index has room for it, compressed or not
		long += rand.Text()
	}
	for _, w.key = range []idempotency.Key{
		{Consumer: w.key.Consumer, MessageID: long + "1"},
		{Consumer: w.key.Consumer, MessageID: long + "2"},
		{Consumer: w.key.Consumer + long[:300], MessageID: long[:256]},
		{Consumer: w.key.Consumer, MessageID: "id"},
		{Consumer: w.key.Consumer, MessageID: "ID"},
		{Consumer: w.key.Consumer, MessageID: "id "},
		{Consumer: w.key.Consumer, MessageID: "íd"},
		{Consumer: w.key.Consumer + " ", MessageID: "id"},
		{Consumer: w.key.Consumer, MessageID: strings.Repeat("x", 255)},
	} {
		require.Equal(w, idempotency.Claimed, w.claim(1, time.Minute).State, "%q", w.key)
		require.Equal(w, idempotency.Busy, w.claim(2, time.Minute).State, "%q", w.key)
	}
}
