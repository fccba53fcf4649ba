package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// One hook for each decision, called when it is durable.
func TestHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		var h *harness
		cfg := middleware.ServiceBus(2, s)
		cfg.Hooks = middleware.Hooks{
			OnRetry: func(ctx context.Context, p middleware.RetryParams) error {
				require.Len(t, h.rescheduled, 1, "durable before the hook")
				require.Zero(t, h.acked, "and not acked yet")
				require.Equal(t, s, p.Decision.Delay)
				require.Equal(t, "orders", p.Origin.Topic)
				require.Equal(t, `{"order":7}`, string(p.Message.Payload))
				seen = append(seen, "retry "+p.Handler)
				return nil
			},
			OnDeadLetter: func(ctx context.Context, p middleware.DeadLetterParams) error {
				require.Len(t, h.letters, 1)
				seen = append(seen, "dead letter "+string(p.DeadLetter.Reason))
				return nil
			},
			OnSkip: func(ctx context.Context, p middleware.SkipParams) error {
				seen = append(seen, "skip "+p.Decision.Verdict.Rule)
				return nil
			},
			OnDefer: func(ctx context.Context, p middleware.DeferParams) error {
				seen = append(seen, "defer "+p.Decision.Delay.String())
				return nil
			},
		}
		h = newHarness(t, cfg, failing(errTimeout))
		h.send(order(t), time.Minute)
		require.Equal(t, []string{"retry billing-handler", "dead letter exhausted"}, seen)

		seen = nil
		newHarness(t, cfg, failing(middleware.HTTPStatus(404, nil))).sendNow(order(t))
		newHarness(t, cfg, failing(middleware.Defer(errTimeout, 3*s))).sendNow(order(t))
		require.Equal(t, []string{"skip http 404", "defer 3s"}, seen)
	})
}

// A hook's own failure must not stop the retry or the dead letter.
func TestHooks_FailuresChangeNothing(t *testing.T) {
	for name, misbehave := range map[string]func(context.Context) error{
		"error":          func(context.Context) error { return errors.New("slack is down") },
		"panic":          func(context.Context) error { panic("hook bug") },
		"Goexit":         func(context.Context) error { runtime.Goexit(); return nil },
		"hangs":          func(context.Context) error { time.Sleep(time.Hour); return nil }, // virtual
		"waits politely": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := middleware.ServiceBus(2)
				cfg.HookTimeout = 2 * s
				cfg.Hooks.OnRetry = func(ctx context.Context, _ middleware.RetryParams) error { return misbehave(ctx) }
				cfg.Hooks.OnDeadLetter = func(ctx context.Context, _ middleware.DeadLetterParams) error { return misbehave(ctx) }
				h := newHarness(t, cfg, failing(errTimeout))
				h.send(order(t), time.Minute)
				require.Len(t, h.runs, 2)
				require.Equal(t, 2, h.acked)
				require.Equal(t, envelope.ReasonExhausted, h.letter().Reason)
				require.LessOrEqual(t, h.runs[1], 2*s, "bounded in time")
				require.Contains(t, h.logs.String(), `"hook":"OnRetry"`)
				time.Sleep(2 * time.Hour) // let the hooks that hang end inside the bubble
				synctest.Wait()
			})
		})
	}
}

// Hooks and observers get the message as it was received, even where it is the one that runs again, and even if a hook
// still reads it by then.
func TestHooks_GetTheReceivedMessage(t *testing.T) {
	for name, test := range map[string]struct {
		rescheduler middleware.Rescheduler
		err         error
	}{
		"retry": {nil, errTimeout}, "retry, held": {inMemory, errTimeout},
		"defer": {nil, middleware.Defer(errTimeout, s)}, "defer, held": {inMemory, middleware.Defer(errTimeout, s)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var want, seen, observed []string
				again := make(chan struct{}) // closed when the handler has run again
				look := func(m *message.Message) string { return fmt.Sprint(m.UUID, m.Metadata, string(m.Payload)) }
				late := func(m *message.Message) error {
					<-again
					seen = append(seen, look(m))
					return nil
				}
				cfg := middleware.Config{
					Rescheduler: test.rescheduler, MaxAttempts: 2, Backoff: middleware.Constant(s), HookTimeout: s / 2,
					Hooks: middleware.Hooks{
						OnRetry: func(_ context.Context, p middleware.RetryParams) error { return late(p.Message) },
						OnDefer: func(_ context.Context, p middleware.DeferParams) error { return late(p.Message) },
					},
					Observer: finished{see: func(m *message.Message) { observed = append(observed, look(m)) }},
				}
				h := newHarness(t, cfg, func(m *message.Message) ([]*message.Message, error) {
					want = append(want, look(m))
					m.UUID, m.Payload[0] = "changed", '!'
					m.Metadata.Set("added", "by the handler")
					if len(want) > 1 {
						close(again)
						return nil, nil
					}
					return nil, test.err
				})
				h.send(order(t), time.Minute)
				require.Len(t, want, 2)
				require.Equal(t, want[:1], seen)
				require.Equal(t, want[:1], observed[:1])
			})
		})
	}
}

// finished is an observer of ends.
type finished struct {
	middleware.NopObserver
	see func(m *message.Message)
}

func (f finished) Finished(_ context.Context, e middleware.Finished) { f.see(e.Message) }
