package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

func TestPipeline_PublishingHealsWithinAFewTries(t *testing.T) {
	for name, err := range map[string]error{"retry": errTimeout, "dead letter": middleware.Permanent(errTimeout)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, middleware.Config{MaxAttempts: 2}, failing(err))
				h.reschedules.n, h.sinks.n = 2, 2
				h.send(order(t), time.Minute)
				require.Zero(t, h.nacked)
				require.Len(t, h.letters, 1)
				require.NotContains(t, h.letter().Message.Metadata, "spoiled", "each try gets a separate message")
				for _, r := range h.rescheduled {
					require.NotContains(t, r.message.Metadata, "spoiled")
				}
			})
		})
	}
}

// No hot loop: a message whose retry cannot be published is nacked, and every broker redelivers a nacked message at
// once. The pauses bound the runs: three tries in 300 ms, then 1, 2, 4 ... 30 s.
func TestPipeline_NoHotLoopWhenNothingCanBePublished(t *testing.T) {
	for name, err := range map[string]error{
		"retry": errTimeout, "dead letter": middleware.Permanent(errTimeout),
		"defer": middleware.Defer(errTimeout, 0),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, middleware.Config{}, failing(err))
				h.reschedules.n, h.sinks.n = -1, -1
				ctx, stop := context.WithCancel(t.Context())
				h.ctx = ctx
				h.send(order(t), 10*time.Minute)
				require.LessOrEqual(t, h.deliveries, 26, "in ten minutes")
				require.GreaterOrEqual(t, h.deliveries, 20)
				require.Zero(t, h.acked, "not settled, so never acked")
				require.Contains(t, h.logs.String(), `"level":"ERROR+4","msg":"message could not be settled and is nacked"`)

				// After the broker recovers the message arrives, once.
				h.reschedules.heal()
				h.sinks.heal()
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Positive(t, h.acked)
				require.Positive(t, len(h.letters)+len(h.rescheduled))
				stop()
				synctest.Wait()
			})
		})
	}
}

func TestPipeline_PauseEndsWithOneMoreTry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.Config{MaxAttempts: 1, NackDelay: 5 * s}, failing(errTimeout))
		h.sinks.n = 3 // as many as there are quick tries
		h.send(order(t), time.Minute)
		require.Len(t, h.runs, 1, "a broker that is back costs no second run")
		require.Equal(t, 4, h.sinks.calls)
		require.Equal(t, 1, h.acked)
	})
}

// The sink is down, the fallback takes the dead letter, the message is acked.
func TestPipeline_Fallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var spooled []*envelope.DeadLetter
		var params []middleware.DeadLetterParams
		cfg := middleware.StoreOnly()
		cfg.Fallback = middleware.DeadLetterFunc(func(_ context.Context, d *envelope.DeadLetter) error {
			spooled = append(spooled, d)
			return nil
		})
		cfg.Hooks.OnDeadLetter = func(_ context.Context, p middleware.DeadLetterParams) error {
			params = append(params, p)
			return nil
		}
		h := newHarness(t, cfg, failing(errors.New("invalid IBAN")))
		h.sinks.n = -1
		h.send(order(t), time.Minute)
		require.Len(t, spooled, 1)
		require.Equal(t, 1, h.acked)
		require.Zero(t, h.nacked)
		require.True(t, params[0].Fallback)
		require.Contains(t, h.logs.String(), `"level":"ERROR+4","msg":"dead letter sink failed, using the fallback"`)
	})
}

func TestPipeline_FallbackFailsToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := middleware.StoreOnly()
		cfg.Fallback = middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { panic("disk full") })
		h := newHarness(t, cfg, failing(errors.New("invalid IBAN")))
		h.sinks.n = -1
		ctx, stop := context.WithCancel(t.Context())
		h.ctx = ctx
		h.send(order(t), time.Minute)
		require.Zero(t, h.acked)
		require.LessOrEqual(t, h.deliveries, 7)
		stop()
		synctest.Wait()
	})
}

func TestPipeline_SinksKeepOnePerPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var queue, store faults
		store.n = 2
		sink := func(f *faults) middleware.DeadLetterSink {
			return middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { return f.next() })
		}
		h := newHarness(t, middleware.Config{DeadLetters: middleware.Sinks{sink(&store), sink(&queue)}},
			failing(middleware.Permanent(errTimeout)))
		h.send(order(t), time.Minute)
		require.Equal(t, 1, queue.calls, "the sink that worked is not called again")
		require.Equal(t, 3, store.calls)
		require.Equal(t, 1, h.acked)

		err := middleware.Sinks{sink(&faults{n: -1}), keep}.DeadLetter(t.Context(), nil)
		require.ErrorContains(t, err, "broker is down")
	})
}

// "Too large" is final: a retry becomes a dead letter, and a dead letter is kept by the sinks that have room.
func TestPipeline_TooLargeIsDeadInTheSinkWithRoom(t *testing.T) {
	tooLarge := fmt.Errorf("5 MB: %w", envelope.ErrTooLarge)
	synctest.Test(t, func(t *testing.T) {
		refusals := 0
		small := middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { refusals++; return tooLarge })
		var roomy faults
		store := middleware.DeadLetterFunc(func(_ context.Context, d *envelope.DeadLetter) error {
			require.Equal(t, envelope.ReasonExhausted, d.Reason)
			require.Equal(t, 1, d.Attempts)
			return roomy.next()
		})
		retries := 0
		h := newHarness(t, middleware.Config{
			DeadLetters: middleware.Sinks{small, store},
			Rescheduler: middleware.ReschedulerFunc(
				func(context.Context, envelope.Origin, *message.Message, time.Duration) error {
					retries++
					return tooLarge
				}),
		}, failing(errTimeout))
		h.send(order(t), time.Minute)
		require.Equal(t, 1, h.acked)
		require.Equal(t, 1, h.deliveries)
		require.Equal(t, []int{1, 1, 1}, []int{retries, refusals, roomy.calls})
		require.Contains(t, h.logs.String(), "retry is too large for the broker")
		require.Contains(t, h.logs.String(), "a dead letter sink has no room")
	})
	synctest.Test(t, func(t *testing.T) { // no sink has room: paced, until one has
		var room atomic.Bool
		h := newHarness(t, middleware.Config{DeadLetters: middleware.DeadLetterFunc(
			func(context.Context, *envelope.DeadLetter) error {
				if room.Load() {
					return nil
				}
				return tooLarge
			})}, failing(middleware.Permanent(errTimeout)))
		h.send(order(t), 10*time.Minute)
		require.Zero(t, h.acked)
		require.LessOrEqual(t, h.deliveries, 26, "in ten minutes")
		room.Store(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 1, h.acked)
	})
}

// A dead letter that the first sink takes ends an outage: with a fallback it did not, and the pauses of the next outage
// began where those of the last one had ended.
func TestPipeline_PausesStartOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sink faults
		keeps := middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { return sink.next() })
		h := newHarness(t, middleware.Config{DeadLetters: keeps, Fallback: keeps}, failing(middleware.Permanent(errTimeout)))
		var took []time.Duration
		for _, sink.n = range []int{-1, -1, -1, 0, -1} {
			start := time.Now()
			_, err := h.handler(order(t))
			require.Equal(t, sink.n == 0, err == nil)
			took = append(took, time.Since(start)-600*time.Millisecond) // three tries with each sink
		}
		require.Equal(t, []time.Duration{s, 2 * s, 4 * s, -600 * time.Millisecond, s}, took)
	})
}

// The message's context is cancelled while its retry is being published, which is when it matters most.
func TestPipeline_ShutdownDuringPublishing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var published error
		cfg := middleware.Config{Rescheduler: middleware.ReschedulerFunc(
			func(ctx context.Context, _ envelope.Origin, _ *message.Message, _ time.Duration) error {
				stop()
				time.Sleep(2 * s) // a slow confirm
				published = ctx.Err()
				return ctx.Err()
			})}
		h := newHarness(t, cfg, failing(errTimeout))
		h.ctx = ctx
		h.send(order(t), time.Minute)
		require.NoError(t, published)
		require.Equal(t, 1, h.acked)
	})
}

func TestPipeline_ShutdownWhileNothingCanBePublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		h := newHarness(t, middleware.Config{NackDelay: time.Hour}, failing(errTimeout))
		h.reschedules.n = -1
		h.ctx = ctx
		m := order(t)
		go h.deliver(m)
		time.Sleep(10 * s) // it is in its pause now
		synctest.Wait()
		require.Zero(t, h.nacked)
		stop()
		synctest.Wait()
		require.Equal(t, 1, h.nacked, "at once")
	})
}

func TestPipeline_PublishTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		cfg := middleware.Config{
			PublishTimeout: 3 * s,
			Rescheduler: middleware.ReschedulerFunc(
				func(ctx context.Context, _ envelope.Origin, _ *message.Message, _ time.Duration) error {
					if calls++; calls > 1 {
						return nil
					}
					<-ctx.Done() // a broker that does not answer
					return ctx.Err()
				}),
		}
		h := newHarness(t, cfg, failing(errTimeout))
		start := time.Now()
		h.sendNow(order(t))
		require.Equal(t, 3*s+100*time.Millisecond, time.Since(start))
		require.Equal(t, 1, h.acked)
	})
}

func TestPipeline_ReschedulerThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := middleware.Config{Rescheduler: middleware.ReschedulerFunc(
			func(context.Context, envelope.Origin, *message.Message, time.Duration) error { panic("driver bug") })}
		h := newHarness(t, cfg, failing(errTimeout))
		ctx, stop := context.WithCancel(t.Context())
		h.ctx = ctx
		h.send(order(t), time.Minute)
		require.Zero(t, h.acked)
		require.Contains(t, h.logs.String(), "panic: driver bug")
		stop()
		synctest.Wait()
	})
}

// A deferral that the broker has no room for is not nacked and deferred for the first time again and again.
func TestPipeline_DeferralIsTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const h = 10 * time.Minute // a broker may take back what is held for longer, and what it becomes would be lost
		b := newHarness(t, middleware.Config{MaxDeferAge: 5 * h / 2}, failing(middleware.Defer(errTimeout, 6*h)))
		b.reschedules.n, b.reschedules.err = -1, fmt.Errorf("5 MB: %w", envelope.ErrTooLarge)
		b.send(order(t), 10*h)
		require.Equal(t, []time.Duration{0, h, 2 * h, 3 * h}, b.ran())
		require.Zero(t, b.nacked)
		require.Equal(t, envelope.ReasonExpired, b.letter().Reason)
	})
}
