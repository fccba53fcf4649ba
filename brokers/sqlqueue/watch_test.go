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

// startWatcher returns a watcher, and a function that makes a reader wait for a queue. Its channel tells when it wakes.
func startWatcher(
	t *testing.T, first func(low, high int64) (map[int64]time.Duration, error),
) (wait func(*reader) <-chan struct{}) {
	t.Helper()
	w := newWatcher(nil, 0, func() bool { return false }, slog.New(slog.DiscardHandler))
	w.first = func(_ context.Context, low, high int64) (map[int64]time.Duration, error) { return first(low, high) }
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { w.run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return func(r *reader) <-chan struct{} {
		w.leave(r)
		w.join(r)
		awake := make(chan struct{})
		go func() {
			if w.wait(ctx, r) == nil {
				close(awake)
			}
		}()
		return awake
	}
}

func newTestReader(queue int64) *reader {
	return newReader(consumerQueue{id: queue}, 100*time.Millisecond)
}

// A thousand idle subscriptions need one statement per poll, and a timer is set for rows that are due later.
func TestWatcher_PollsOnceForAllQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		wait := startWatcher(t, func(low, high int64) (map[int64]time.Duration, error) {
			require.Equal(t, []int64{1, 1000}, []int64{low, high})
			looks++
			return map[int64]time.Duration{7: time.Minute}, nil
		})
		var seventh <-chan struct{}
		for queue := range int64(1000) {
			if awake := wait(newTestReader(queue + 1)); queue+1 == 7 {
				seventh = awake
			}
		}
		time.Sleep(10 * time.Second) // virtual
		synctest.Wait()
		require.InDelta(t, 105, looks, 5)
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		<-seventh
	})
}

// A due row wakes only its own queue, after the subscription's pause; one that cannot be claimed causes no hot loop.
func TestWatcher_WakesQueuesWithDueRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := startWatcher(t, func(int64, int64) (map[int64]time.Duration, error) {
			return map[int64]time.Duration{1: -time.Second}, nil
		})
		other := wait(newTestReader(2))
		locked, began := newTestReader(1), time.Now()
		for range 20 {
			<-wait(locked)
			require.True(t, locked.due)
		}
		require.Greater(t, time.Since(began), time.Second)
		select {
		case <-other:
			t.Fatal("nothing was due")
		default:
		}
	})
}

// An unreachable database is polled less and less often, and the error is logged once.
func TestWatcher_BacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures := 0
		wait := startWatcher(t, func(int64, int64) (map[int64]time.Duration, error) {
			if failures++; failures <= 20 {
				return nil, errors.New("refused")
			}
			return map[int64]time.Duration{1: 0}, nil
		})
		<-wait(newTestReader(1))
		require.Equal(t, 21, failures)
	})
}

// A poll that waited for a frozen server used to stop the polling for twenty times as long: no retry that was due, and
// no message of a dead worker, was found for minutes after the server went on.
func TestWatcher_ASlowPollDelaysTheNextForSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		due := map[int64]time.Duration{}
		wait := startWatcher(t, func(int64, int64) (map[int64]time.Duration, error) {
			if len(due) > 0 {
				return due, nil
			}
			time.Sleep(9 * time.Second) // virtual
			due[1] = 0
			return nil, nil
		})
		began := time.Now()
		<-wait(newTestReader(1))
		require.Less(t, time.Since(began), 15*time.Second)
	})
}
