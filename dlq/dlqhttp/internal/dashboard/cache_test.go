package dashboard

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Fifty viewers whose pages refresh every five seconds, each at its own moment, cause one query in five seconds.
func TestCache_FiftyViewersAskAsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(5 * time.Second)
		var asked atomic.Int64
		load := func(context.Context) (int64, error) {
			time.Sleep(300 * time.Millisecond) // the store at work, in virtual time
			return asked.Add(1), nil
		}
		var viewers sync.WaitGroup
		for n := range 50 {
			viewers.Go(func() {
				time.Sleep(time.Duration(n) * 97 * time.Millisecond)
				for range 12 { // a minute
					seen, at, err := cached(t.Context(), c, "overview", load)
					if err != nil || seen < 1 || time.Since(at) > 5*time.Second+300*time.Millisecond {
						t.Errorf("saw %d of %s ago, %v: nothing that is older than the interval", seen, time.Since(at), err)
					}
					time.Sleep(5 * time.Second)
				}
			})
		}
		start := time.Now()
		viewers.Wait()
		require.LessOrEqual(t, asked.Load(), int64(time.Since(start)/(5*time.Second))+1)
		require.Greater(t, asked.Load(), int64(5), "the pages did refresh")
	})
}

// The author of a change sees it at once, even if an earlier answer is still on its way.
func TestCache_Forget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(time.Minute)
		version := 1
		slow := make(chan struct{})
		first := make(chan error, 1)
		go func() {
			_, _, err := cached(t.Context(), c, "list", func(context.Context) (int, error) {
				old := version
				<-slow
				return old, nil
			})
			first <- err
		}()
		synctest.Wait()
		version = 2
		c.forget()
		close(slow)
		require.NoError(t, <-first)
		seen, _, err := cached(t.Context(), c, "list", func(context.Context) (int, error) { return version, nil })
		require.NoError(t, err)
		require.Equal(t, 2, seen)
	})
}

// A viewer that leaves does not cancel the answer for the others, and an error is not kept for long.
func TestCache_LeavingAndErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(5 * time.Second)
		ctx, leave := context.WithCancel(t.Context())
		load := func(ctx context.Context) (string, error) {
			time.Sleep(time.Second)
			return "kept", ctx.Err()
		}
		go func() {
			time.Sleep(100 * time.Millisecond)
			leave()
		}()
		_, _, err := cached(ctx, c, "k", load)
		require.ErrorIs(t, err, context.Canceled)
		seen, _, err := cached(t.Context(), c, "k", load)
		require.NoError(t, err)
		require.Equal(t, "kept", seen)

		down := errors.New("down")
		asked := 0
		failing := func(context.Context) (string, error) {
			asked++
			return "", down
		}
		for range 10 {
			_, _, err := cached(t.Context(), c, "e", failing)
			require.ErrorIs(t, err, down)
		}
		require.Equal(t, 1, asked)
		time.Sleep(errorInterval)
		synctest.Wait()
		_, _, err = cached(t.Context(), c, "e", failing)
		require.ErrorIs(t, err, down)
		require.Equal(t, 2, asked)
	})
}

// A load runs in a goroutine of ours: when it panics, its callers get an error and the process lives.
func TestCache_Panic(t *testing.T) {
	c := newCache(time.Hour)
	_, _, err := cached(t.Context(), c, "k", func(context.Context) (int, error) { panic("boom") })
	require.EqualError(t, err, "panic: boom")
}

// The cache is bounded, however many pages a user walks through.
func TestCache_Bounded(t *testing.T) {
	c := newCache(time.Hour)
	for n := range 3 * maxKept {
		_, _, err := cached(t.Context(), c, strconv.Itoa(n), func(context.Context) (int, error) { return n, nil })
		require.NoError(t, err)
	}
	require.LessOrEqual(t, len(c.kept), maxKept)
}
