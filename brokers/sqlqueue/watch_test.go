package sqlqueue

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func startWatcher(t *testing.T, first func(low, high int64) (map[int64]time.Duration, error)) *watcher {
	t.Helper()
	w := newWatcher(nil, 0, func() bool { return false }, slog.New(slog.DiscardHandler))
	w.first = func(_ context.Context, low, high int64) (map[int64]time.Duration, error) { return first(low, high) }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { w.run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// A thousand idle subscriptions need one statement per poll, and a timer is set for rows that are due later.
func TestWatcher_PollsOnceForAllQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		w := startWatcher(t, func(low, high int64) (map[int64]time.Duration, error) {
			require.Equal(t, []int64{1, 1000}, []int64{low, high})
			looks++
			return map[int64]time.Duration{7: time.Hour}, nil
		})
		var sevenths *alarm
		for queue := range int64(1000) {
			a := newAlarm()
			if w.join(queue+1, a, &idleness{longest: 100 * time.Millisecond}); queue+1 == 7 {
				sevenths = a
			}
		}
		time.Sleep(10 * time.Second) // virtual
		synctest.Wait()
		require.InDelta(t, 105, looks, 5)
		time.Sleep(time.Hour) // virtual
		synctest.Wait()
		<-sevenths.c
		sevenths.stop()
	})
}

// A due row wakes only its own queue, after the subscription's pause; one that cannot be claimed causes no hot loop.
func TestWatcher_WakesQueuesWithDueRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWatcher(t, func(int64, int64) (map[int64]time.Duration, error) {
			return map[int64]time.Duration{1: -time.Second}, nil
		})
		other := w.join(2, newAlarm(), &idleness{longest: 100 * time.Millisecond})
		idle, began := &idleness{longest: 100 * time.Millisecond}, time.Now()
		for range 20 {
			<-w.join(1, newAlarm(), idle).seen
		}
		require.Greater(t, time.Since(began), time.Second)
		select {
		case <-other.seen:
			t.Fatal("nothing was due")
		default:
		}
	})
}

// An unreachable database is polled less and less often, and the error is logged once.
func TestWatcher_BacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures := 0
		w := startWatcher(t, func(int64, int64) (map[int64]time.Duration, error) {
			if failures++; failures <= 20 {
				return nil, errors.New("refused")
			}
			return map[int64]time.Duration{1: 0}, nil
		})
		<-w.join(1, newAlarm(), &idleness{longest: 75 * time.Millisecond}).seen
		require.Equal(t, 21, failures)
	})
}
