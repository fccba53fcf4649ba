package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	theirs "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

func TestPipeline_HeldMessagesAreGivenBackAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.Config{Rescheduler: inMemory, Backoff: middleware.Constant(time.Hour)},
			failing(errTimeout))
		ctx, stop := context.WithCancel(t.Context())
		h.ctx = ctx
		time.AfterFunc(10*s, stop)
		h.send(order(t), time.Minute)
		require.Len(t, h.runs, 1)
		require.Equal(t, 1, h.nacked)
		require.Zero(t, h.acked)
		require.Empty(t, h.letters)
	})
}

// Shutdown costs no attempt and dead-letters nothing, whatever error the cancelled client returns.
func TestPipeline_ShutdownDuringTheHandler(t *testing.T) {
	for name, err := range map[string]error{
		"context.Canceled":        context.Canceled,
		"wrapped":                 fmt.Errorf("query: %w", context.Canceled),
		"a driver's own words":    errors.New("pq: canceling statement due to user request"),
		"retryable":               errTimeout,
		"deferred":                middleware.Defer(errTimeout, s),
		"its very last attempt":   errors.New("x"),
		"nothing: it has noticed": nil,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			h := newHarness(t, middleware.Config{MaxAttempts: 1}, func(m *message.Message) ([]*message.Message, error) {
				stop()
				<-m.Context().Done()
				if err == nil {
					return nil, m.Context().Err()
				}
				return nil, err
			})
			h.ctx = ctx
			h.sendNow(order(t))
			require.Equal(t, 1, h.nacked)
			require.Zero(t, h.acked)
			require.Empty(t, h.letters)
			require.Empty(t, h.rescheduled)
		})
	}
}

// A delivery ends with its ack. A handler that acked the message itself and then failed lost it, as if this was a
// shutdown, at which the broker redelivers what is not acked.
func TestPipeline_HandlerThatAcksAndFails(t *testing.T) {
	for attempts, rescheduler := range map[int]middleware.Rescheduler{1: nil, 2: nil, 3: inMemory} {
		t.Run(fmt.Sprintf("%d attempts", attempts), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				h := newHarness(t, middleware.Config{MaxAttempts: attempts, Rescheduler: rescheduler},
					func(m *message.Message) ([]*message.Message, error) {
						m.Ack()
						stop() // as mem:// does
						return nil, errTimeout
					})
				h.ctx = ctx
				h.send(order(t), time.Minute)
				if attempts == 2 {
					require.Len(t, h.rescheduled, 1)
					return
				}
				require.Len(t, h.letters, 1)
				require.Len(t, h.runs, attempts)
			})
		})
	}
}

// The broker redelivers what is nacked: with a retry besides, the message doubled with every run.
func TestPipeline_HandlerThatNacksAndFails(t *testing.T) {
	for name, err := range map[string]error{
		"retryable": errTimeout, "permanent": middleware.Permanent(errTimeout), "skip": middleware.Skip(errTimeout),
	} {
		for _, closed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, closed %t", name, closed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, stop := context.WithCancel(t.Context())
					defer stop()
					h := newHarness(t, middleware.Config{MaxAttempts: 2}, func(m *message.Message) ([]*message.Message, error) {
						m.Nack()
						if closed {
							stop()
						}
						return nil, err
					})
					m := order(t)
					m.SetContext(ctx)
					_, err := h.handler(m)
					require.ErrorIs(t, err, middleware.ErrGivenBack)
					require.Empty(t, h.rescheduled)
					require.Empty(t, h.letters)
					require.Contains(t, h.logs.String(), "message returned: it has been nacked already")
				})
			})
		}
	}
}

// A message that is held has the delivery's context when it is run again. The one that Timeout had derived was over, so
// that every further attempt failed, and the wait did not notice a shutdown.
func TestPipeline_HeldWithATimeoutOutside(t *testing.T) {
	for name, within := range map[string]func(context.Context, *testing.T) context.Context{
		"origin": func(ctx context.Context, _ *testing.T) context.Context {
			return envelope.WithOrigin(ctx, &envelope.Origin{Topic: "orders"})
		},
		"router": inRouter,
	} {
		for _, closed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, closed %t", name, closed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					runs := 0
					h := newHarness(t, middleware.Config{
						MaxAttempts: 3, Rescheduler: inMemory, Backoff: middleware.Constant(time.Hour),
					}, func(m *message.Message) ([]*message.Message, error) {
						if runs++; runs < 3 {
							return nil, errors.Join(errTimeout, m.Context().Err())
						}
						return nil, m.Context().Err()
					})
					ctx, stop := context.WithCancel(t.Context())
					t.Cleanup(stop)
					m := order(t)
					m.SetContext(within(ctx, t))
					start := time.Now()
					if closed {
						time.AfterFunc(90*time.Minute, stop)
					}
					_, err := theirs.Timeout(time.Minute)(h.handler)(m)
					require.Empty(t, h.letters)
					if closed {
						require.ErrorIs(t, err, middleware.ErrGivenBack)
						require.Equal(t, 90*time.Minute, time.Since(start))
						require.Contains(t, h.logs.String(), "message returned: this consumer is shutting down")
						return
					}
					require.NoError(t, err)
					require.Equal(t, 3, runs)
				})
			})
		}
	}
}

func TestPipeline_ShutdownKeepsDecisions(t *testing.T) {
	for name, tt := range map[string]struct {
		err     error
		letters int
	}{
		"success":   {nil, 0},
		"permanent": {middleware.Permanent(errors.New("invalid")), 1},
		"skip":      {middleware.Skip(errors.New("known")), 0},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			h := newHarness(t, middleware.Config{}, func(*message.Message) ([]*message.Message, error) {
				stop()
				return nil, tt.err
			})
			h.ctx = ctx
			h.sendNow(order(t))
			require.Equal(t, 1, h.acked)
			require.Len(t, h.letters, tt.letters, "published on a context that outlives the message's")
		})
	}
}

func TestPipeline_DoesNotStartAfterShutdown(t *testing.T) {
	p, err := middleware.New(middleware.Config{Rescheduler: middleware.HoldInMemory, DeadLetters: keep, Logger: quiet})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	m := order(t)
	m.SetContext(ctx)
	_, err = p.Middleware(func(*message.Message) ([]*message.Message, error) {
		t.Error("the handler was called")
		return nil, nil
	})(m)
	require.ErrorIs(t, err, middleware.ErrGivenBack)
	require.ErrorIs(t, err, context.Canceled, "keeps Watermill's router from logging it")
}

// The log explains why a message was redelivered: only a shutdown is called one.
func TestPipeline_LogsWhyAMessageIsReturned(t *testing.T) {
	for _, tt := range []struct {
		cause error
		want  string
	}{
		{nil, `msg="message returned: this consumer is shutting down"`},
		{errors.New("the lease was lost"), `msg="message returned: the lease was lost"`},
		{&hostileError{in: "Error"}, `msg="message returned: `},
	} {
		var lines strings.Builder
		p, err := middleware.New(middleware.Config{
			Rescheduler: middleware.HoldInMemory, DeadLetters: keep, Logger: slog.New(slog.NewTextHandler(&lines, nil)),
		})
		require.NoError(t, err)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(tt.cause)
		m := order(t)
		m.SetContext(ctx)
		_, err = p.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(m)
		require.ErrorIs(t, err, middleware.ErrGivenBack)
		require.Contains(t, lines.String(), tt.want)
	}
}

// A subscriber's own deadline is not a shutdown: treated as one, the message would loop forever.
func TestPipeline_SubscribersDeadlineCountsAsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, middleware.Config{}, func(m *message.Message) ([]*message.Message, error) {
			<-m.Context().Done()
			return nil, m.Context().Err()
		})
		ctx, stop := context.WithTimeout(t.Context(), 5*s)
		defer stop()
		h.ctx = ctx
		h.send(order(t), 5*s)
		require.Len(t, h.rescheduled, 1)
		require.Equal(t, 1, h.acked)
	})
}

// A message that is held when the subscriber's deadline passes waits for the rest of its delay, not for all of it.
func TestPipeline_HeldBeyondTheSubscribersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := middleware.Config{Rescheduler: inMemory, MaxAttempts: 2, Backoff: middleware.Constant(10 * s)}
		h := newHarness(t, cfg, failing(errTimeout))
		ctx, stop := context.WithTimeout(t.Context(), 9*s)
		defer stop()
		h.ctx = ctx
		h.send(order(t), time.Minute)
		require.Equal(t, []time.Duration{0, 10 * s}, h.ran())
	})
}
