// Package storetest is the conformance suite for stores of package idempotency. Call [Run] from a test of your own
// store.
package storetest

import (
	"crypto/rand"
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
	for name, run := range map[string]func(t *testing.T, s idempotency.Store, key idempotency.Key){
		"Claim_IsExclusiveUntilReleased":     exclusive,
		"Claim_OfManyAtOnceHasOneWinner":     oneClaims,
		"Complete_IsRememberedWithItsResult": completed,
		"Lease_OfACrashedOwnerEnds":          crashedOwner,
		"Lease_OfACrashedOwnerHasOneHeir":    oneTakesOver,
		"Lease_IsRenewed":                    renewed,
		"Retention_Ends":                     retentionEnds,
		"Keys_OfAnyTextAreKeptApart":         keysApart,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, open(t), idempotency.Key{Consumer: t.Name(), MessageID: "m"})
		})
	}
}

func claim(t *testing.T, s idempotency.Store, key idempotency.Key, owner int64, d time.Duration) idempotency.Record {
	t.Helper()
	r, err := s.Claim(t.Context(), key, owner, d)
	require.NoError(t, err)
	return r
}

func exclusive(t *testing.T, s idempotency.Store, key idempotency.Key) {
	t.Helper()
	require.Equal(t, idempotency.Claimed, claim(t, s, key, 1, time.Minute).State)
	busy := claim(t, s, key, 2, time.Minute)
	require.Equal(t, idempotency.Busy, busy.State)
	require.Greater(t, busy.Remaining, 30*time.Second)
	require.LessOrEqual(t, busy.Remaining, time.Minute)

	require.NoError(t, s.Release(t.Context(), key, 2), "releasing another owner's claim does nothing")
	require.Equal(t, idempotency.Busy, claim(t, s, key, 2, time.Minute).State)
	require.NoError(t, s.Release(t.Context(), key, 1))
	require.Equal(t, idempotency.Claimed, claim(t, s, key, 2, time.Minute).State)
	require.ErrorIs(t, s.Complete(t.Context(), key, 1, nil, time.Minute), idempotency.ErrLost)
}

func oneClaims(t *testing.T, s idempotency.Store, key idempotency.Key) {
	t.Helper()
	var (
		mu      sync.Mutex
		winners int
		all     sync.WaitGroup
	)
	for owner := range int64(20) {
		all.Go(func() {
			r, err := s.Claim(t.Context(), key, owner, time.Minute)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && r.State == idempotency.Claimed {
				winners++
			}
		})
	}
	all.Wait()
	require.Equal(t, 1, winners)
}

// oneTakesOver lets many owners claim the key of a crashed one after its lease has ended.
func oneTakesOver(t *testing.T, s idempotency.Store, key idempotency.Key) {
	t.Helper()
	for round := range 10 {
		key.MessageID = strconv.Itoa(round)
		claim(t, s, key, 1, 0)
		var (
			heirs atomic.Int32
			all   sync.WaitGroup
			start = make(chan struct{})
		)
		for owner := range int64(8) {
			all.Go(func() {
				<-start
				if r, err := s.Claim(t.Context(), key, 2+owner, time.Minute); err == nil && r.State == idempotency.Claimed {
					heirs.Add(1)
				}
			})
		}
		close(start)
		all.Wait()
		require.EqualValues(t, 1, heirs.Load())
	}
}

func completed(t *testing.T, s idempotency.Store, key idempotency.Key) {
	t.Helper()
	outcome := []byte("\x00\xff result")
	claim(t, s, key, 1, time.Minute)
	require.NoError(t, s.Complete(t.Context(), key, 1, outcome, time.Hour))
	require.NoError(t, s.Complete(t.Context(), key, 1, outcome, time.Hour), "the owner may repeat it")
	done := claim(t, s, key, 2, time.Minute)
	require.Equal(t, idempotency.Done, done.State)
	require.Equal(t, outcome, done.Outcome)

	require.NoError(t, s.Release(t.Context(), key, 1))
	require.Equal(t, idempotency.Done, claim(t, s, key, 2, time.Minute).State, "a key that is done stays done")
	require.ErrorIs(t, s.Renew(t.Context(), key, 1, time.Minute), idempotency.ErrLost)
}

func crashedOwner(t *testing.T, s idempotency.Store, key idempotency.Key) {
	t.Helper()
	claim(t, s, key, 1, time.Minute)
	require.Equal(t, idempotency.Busy, claim(t, s, key, 2, time.Minute).State)
	key.MessageID += "-crashed"
	claim(t, s, key, 1, lease)
	require.Eventually(t, func() bool {
		return claim(t, s, key, 2, time.Minute).State == idempotency.Claimed
	}, patience, 10*time.Millisecond)
	require.ErrorIs(t, s.Renew(t.Context(), key, 1, time.Minute), idempotency.ErrLost)
	require.ErrorIs(t, s.Complete(t.Context(), key, 1, nil, time.Minute), idempotency.ErrLost)
}

func renewed(t *testing.T, s idempotency.Store, key idempotency.Key) {
	t.Helper()
	claim(t, s, key, 1, 10*time.Second)
	require.NoError(t, s.Renew(t.Context(), key, 1, time.Minute))
	busy := claim(t, s, key, 2, time.Minute)
	require.Equal(t, idempotency.Busy, busy.State)
	require.Greater(t, busy.Remaining, 30*time.Second)
}

func retentionEnds(t *testing.T, s idempotency.Store, key idempotency.Key) {
	t.Helper()
	claim(t, s, key, 1, time.Minute)
	require.NoError(t, s.Complete(t.Context(), key, 1, nil, lease))
	require.Eventually(t, func() bool {
		return claim(t, s, key, 2, time.Minute).State == idempotency.Claimed
	}, patience, 10*time.Millisecond)
}

func keysApart(t *testing.T, s idempotency.Store, key idempotency.Key) {
	t.Helper()
	long := rand.Text()
	for len(long) < 5000 { // no column and no index has room for it, compressed or not
		long += rand.Text()
	}
	for _, k := range []idempotency.Key{
		{Consumer: key.Consumer, MessageID: long + "1"},
		{Consumer: key.Consumer, MessageID: long + "2"},
		{Consumer: key.Consumer + long[:300], MessageID: long[:256]},
		{Consumer: key.Consumer, MessageID: "id"},
		{Consumer: key.Consumer, MessageID: "ID"},
		{Consumer: key.Consumer, MessageID: "id "},
		{Consumer: key.Consumer, MessageID: "íd"},
		{Consumer: key.Consumer + " ", MessageID: "id"},
		{Consumer: key.Consumer, MessageID: strings.Repeat("x", 255)},
	} {
		require.Equal(t, idempotency.Claimed, claim(t, s, k, 1, time.Minute).State, "%q", k)
		require.Equal(t, idempotency.Busy, claim(t, s, k, 2, time.Minute).State, "%q", k)
	}
}
