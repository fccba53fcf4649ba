package middleware_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/middleware"
)

// inHandler runs f with a handler's context, under a deadline of d, and returns that context when the handler has
// returned.
func inHandler(t testing.TB, parent context.Context, //nolint:revive // t comes first in tests
	d time.Duration, f func(ctx context.Context),
) context.Context {
	t.Helper()
	p := benchPipeline(t, func(c *middleware.Config) { c.Timeout = d })
	m := order(t)
	m.SetContext(parent)
	var kept context.Context
	_, err := p.Middleware(func(m *message.Message) ([]*message.Message, error) {
		kept = m.Context() //nolint:fatcontext // inspected after the handler's return
		f(kept)
		return nil, nil
	})(m)
	require.NoError(t, err)
	return kept
}

type valueKey struct{}

func TestAttemptContext_Deadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		parent := context.WithValue(t.Context(), valueKey{}, "from the parent")
		inHandler(t, parent, 5*s, func(ctx context.Context) {
			at, ok := ctx.Deadline()
			require.True(t, ok, "known at once")
			require.Equal(t, start.Add(5*s), at)
			require.Equal(t, "from the parent", ctx.Value(valueKey{}))
			require.NoError(t, ctx.Err())
			time.Sleep(4999 * time.Millisecond)
			require.NoError(t, ctx.Err())
			time.Sleep(time.Millisecond)
			require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded, "without a call of Done")
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
		})
	})
}

func TestAttemptContext_DoneFires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		inHandler(t, t.Context(), 5*s, func(ctx context.Context) {
			<-ctx.Done()
			require.Equal(t, 5*s, time.Since(start))
			require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
		})
	})
}

func TestAttemptContext_ParentsEnd(t *testing.T) {
	for name, askFirst := range map[string]bool{"Done called before": true, "Done called after": false} {
		t.Run(name, func(t *testing.T) {
			parent, stop := context.WithCancelCause(t.Context())
			inHandler(t, parent, time.Hour, func(ctx context.Context) {
				if askFirst {
					require.NotNil(t, ctx.Done())
				}
				stop(errTimeout)
				<-ctx.Done()
				require.Equal(t, context.Canceled, ctx.Err())
				require.Equal(t, errTimeout, context.Cause(ctx), "the parent's cause")
			})
		})
	}
}

func TestAttemptContext_ParentsEarlierDeadlineWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, stop := context.WithTimeout(t.Context(), s)
		defer stop()
		inHandler(t, parent, time.Hour, func(ctx context.Context) {
			want, _ := parent.Deadline()
			at, ok := ctx.Deadline()
			require.True(t, ok)
			require.Equal(t, want, at)
			<-ctx.Done()
			require.Equal(t, context.DeadlineExceeded, ctx.Err())
		})
	})
}

func TestAttemptContext_ErrNeverChangesItsMind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, stop := context.WithCancel(t.Context())
		inHandler(t, parent, s, func(ctx context.Context) {
			time.Sleep(2 * s)
			require.Equal(t, context.DeadlineExceeded, ctx.Err())
			stop()
			require.Equal(t, context.DeadlineExceeded, ctx.Err(), "a later end of the parent changes nothing")
		})
	})
}

func TestAttemptContext_NoDeadline(t *testing.T) {
	kept := inHandler(t, t.Context(), -1, func(ctx context.Context) {
		_, ok := ctx.Deadline()
		require.False(t, ok)
		require.NoError(t, ctx.Err())
		require.NotNil(t, ctx.Done())
	})
	require.ErrorIs(t, kept.Err(), context.Canceled)
}

// A context that is kept is done once the handler has returned, whether or not Done was called before.
func TestAttemptContext_ReleasedWithTheHandler(t *testing.T) {
	for name, askFirst := range map[string]bool{"asked before": true, "asked after": false} {
		t.Run(name, func(t *testing.T) {
			parent := context.WithValue(t.Context(), valueKey{}, "still there")
			var child context.Context
			kept := inHandler(t, parent, time.Hour, func(ctx context.Context) {
				if askFirst {
					var stop context.CancelFunc
					child, stop = context.WithCancel(ctx) //nolint:fatcontext // inspected after the handler's return
					t.Cleanup(stop)
				}
			})
			if !askFirst {
				var stop context.CancelFunc
				child, stop = context.WithCancel(kept)
				t.Cleanup(stop)
			}
			<-kept.Done()
			<-child.Done()
			require.Equal(t, context.Canceled, kept.Err())
			require.Equal(t, context.Canceled, child.Err())
			require.Equal(t, "still there", kept.Value(valueKey{}))
			require.Equal(t, 1, mustAttempt(t, kept).Number)
		})
	}
}

func mustAttempt(t testing.TB, ctx context.Context) middleware.Attempt { //nolint:revive // t comes first in tests
	t.Helper()
	a, ok := middleware.AttemptFrom(ctx)
	require.True(t, ok)
	return a
}

// Children of a custom context cost a goroutine each unless the context package can see through it.
func TestAttemptContext_ChildrenNeedNoGoroutine(t *testing.T) {
	inHandler(t, t.Context(), time.Hour, func(ctx context.Context) {
		before := runtime.NumGoroutine()
		for range 100 {
			child, stop := context.WithTimeout(ctx, time.Hour)
			defer stop()
			require.NoError(t, child.Err())
		}
		require.Less(t, runtime.NumGoroutine(), before+50)
	})
}

func TestAttemptContext_ConcurrentUse(t *testing.T) {
	for range 200 {
		var wg sync.WaitGroup
		inHandler(t, t.Context(), time.Hour, func(ctx context.Context) {
			for range 4 {
				wg.Go(func() {
					_ = ctx.Err()
					<-ctx.Done() // released by the handler's return, perhaps just now
					if ctx.Err() == nil {
						t.Error("done without an error")
					}
				})
			}
		})
		wg.Wait()
	}
}
