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

func breakerConfig(b middleware.Breaker) middleware.Config {
	return middleware.Config{Breaker: &b, MaxAttempts: 10, Backoff: middleware.Constant(time.Hour)}
}

// Five failures in a row open the circuit for 60 s. Messages that arrive then are deferred for the rest of that time,
// without an attempt, and none is lost.
func TestBreaker_OpensDefersAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		h := newHarness(t, breakerConfig(middleware.Breaker{}), func(*message.Message) ([]*message.Message, error) {
			if down.Load() {
				return nil, errTimeout
			}
			return nil, nil
		})
		h.start = time.Now()
		for range 5 {
			h.deliver(order(t))
		}
		require.Len(t, h.ran(), 5)
		require.Contains(t, h.logs.String(), `"level":"WARN","msg":"circuit changed","circuit":"billing-handler","to":"open"`)

		time.Sleep(20 * s)
		synctest.Wait()
		h.deliver(order(t))
		require.Len(t, h.ran(), 5, "not called")
		h.mu.Lock()
		deferred := h.rescheduled[5]
		h.mu.Unlock()
		require.Equal(t, 40*s, deferred.delay)
		require.Equal(t, "0", orZero(deferred.message.Metadata[envelope.KeyRetryCount]))
		require.Contains(t, h.logs.String(), `message deferred, scheduled`)

		down.Store(false)
		time.Sleep(40 * s)
		synctest.Wait()
		require.Len(t, h.ran(), 6, "the deferred message closes the circuit")
		require.Contains(t, h.logs.String(), `"to":"closed"`)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		require.Len(t, h.ran(), 11)
		require.Empty(t, h.letters)
	})
}

func TestBreaker_HalfOpenLetsSingleOnesThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, breakerConfig(middleware.Breaker{Failures: 1}),
			func(*message.Message) ([]*message.Message, error) {
				time.Sleep(s)
				return nil, errTimeout
			})
		h.deliver(order(t))
		time.Sleep(60 * s)
		synctest.Wait()
		for range 20 {
			m := order(t)
			go h.deliver(m)
		}
		time.Sleep(2 * s)
		synctest.Wait()
		require.Len(t, h.ran(), 2, "one of twenty")
		deliveries := h.count(&h.deliveries)
		time.Sleep(50 * s)
		synctest.Wait()
		require.Less(t, h.count(&h.deliveries)-deliveries, 60, "the others do not come back in a hot loop")
		require.Len(t, h.ran(), 4, "the failures of three have opened the circuit again")
		h.pipelineStop(t)
	})
}

// pipelineStop cancels what is still scheduled, so that a bubble can end.
func (s *harness) pipelineStop(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, timer := range s.timers {
		timer.Stop()
	}
}

// A message that always fails used to come first whenever the circuit half-opened, and kept it open for all others.
func TestBreaker_BadMessagesStarveNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down, good := true, atomic.Int32{}
		cfg := breakerConfig(middleware.Breaker{Failures: 2})
		cfg.Backoff, cfg.MaxAttempts = middleware.Constant(s), 1000
		h := newHarness(t, cfg, func(m *message.Message) ([]*message.Message, error) {
			if down || m.Metadata["bad"] != "" {
				return nil, errors.New("no idea")
			}
			good.Add(1)
			return nil, nil
		})
		h.start = time.Now()
		for range 2 {
			m := order(t)
			m.Metadata["bad"] = "yes"
			h.deliver(m)
		}
		down = false
		for range 10 {
			h.deliver(order(t)) // deferred: the circuit is open
		}
		time.Sleep(70 * s)
		synctest.Wait()
		require.Contains(t, h.logs.String(), `"to":"closed"`)
		require.EqualValues(t, 10, good.Load(), "within one round of trials")
		h.pipelineStop(t)
	})
}

// One message that fails, however often, does not block the handler for the others.
func TestBreaker_OneMessageDoesNotOpenIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := breakerConfig(middleware.Breaker{})
		cfg.Backoff, cfg.MaxAttempts = middleware.None(), 20
		h := newHarness(t, cfg, failing(errors.New("no idea")))
		h.send(order(t), time.Minute)
		require.Len(t, h.ran(), 20)
		require.NotContains(t, h.logs.String(), "circuit changed")
	})
}

// An unknown error is a failure of the dependency also where the policy dead-letters it at once.
func TestBreaker_CountsUnknownErrorsThatAreNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := breakerConfig(middleware.Breaker{Failures: 3})
		cfg.OnUnknown = middleware.OutcomeDeadLetter
		h := newHarness(t, cfg, failing(errors.New("no idea")))
		for range 6 {
			h.sendNow(order(t))
		}
		require.Len(t, h.ran(), 3)
	})
}

// Only errors that a retry may cure tell of the dependency: Watermill's breaker opens on invalid orders.
func TestBreaker_CountsOnlyRetryableErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		open bool
	}{
		"retryable": {errTimeout, true},
		"unknown":   {errors.New("no idea"), true},
		"permanent": {middleware.Permanent(errTimeout), false},
		"skip":      {middleware.Skip(errTimeout), false},
		"defer":     {middleware.Defer(errTimeout, s), false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, breakerConfig(middleware.Breaker{Failures: 3}), failing(tt.err))
			for range 6 {
				h.sendNow(order(t))
			}
			want := 6
			if tt.open {
				want = 3
			}
			require.Len(t, h.ran(), want)
		})
	}
}

func TestBreaker_SuccessResets(t *testing.T) {
	n := 0
	h := newHarness(t, breakerConfig(middleware.Breaker{Failures: 3}), func(*message.Message) ([]*message.Message, error) {
		if n++; n%3 == 0 {
			return nil, nil
		}
		return nil, errTimeout
	})
	for range 12 {
		h.sendNow(order(t))
	}
	require.Len(t, h.ran(), 12)
}

// Errors that tell nothing about the dependency used to end a run of failures: with every third message invalid, the
// circuit of a dead dependency never opened, and an invalid message closed it when half-open.
func TestBreaker_InvalidMessagesChangeNothing(t *testing.T) {
	for name, invalid := range map[string]error{
		"permanent": middleware.Permanent(errTimeout), "skip": middleware.Skip(errTimeout),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := 0
				cfg := breakerConfig(middleware.Breaker{Failures: 3})
				h := newHarness(t, cfg, func(*message.Message) ([]*message.Message, error) {
					if n++; n%3 == 0 {
						return nil, invalid
					}
					return nil, errTimeout
				})
				for range 12 {
					h.deliver(order(t))
				}
				require.Len(t, h.ran(), 4, "three failures and an invalid message")
				h.pipelineStop(t)

				n = 2
				time.Sleep(60 * s)
				synctest.Wait()
				h.deliver(order(t))
				require.Equal(t, 3, n, "an invalid message probes the half-open circuit")
				require.NotContains(t, h.logs.String(), `"to":"closed"`)
				for range 5 {
					h.deliver(order(t))
				}
				h.pipelineStop(t)
			})
		})
	}
}

func TestBreaker_PausesIntake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := true
		h := newHarness(t, breakerConfig(middleware.Breaker{Failures: 1, Delay: 30 * s, WhenOpen: middleware.OpenPause}),
			func(*message.Message) ([]*message.Message, error) {
				if down {
					return nil, errTimeout
				}
				return nil, nil
			})
		h.start = time.Now()
		h.deliver(order(t))
		down = false
		time.Sleep(10 * s)
		synctest.Wait()
		h.deliver(order(t))
		require.Equal(t, []time.Duration{0, 30 * s}, h.ran(), "it waited where it was")
		require.Len(t, h.rescheduled, 1, "and was not deferred")
		h.pipelineStop(t)
	})
}

// While one message tests the circuit, the others wait without spinning.
func TestBreaker_PausedMessagesWaitForTheTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int32
		h := newHarness(t, breakerConfig(middleware.Breaker{Failures: 1, Delay: 30 * s, WhenOpen: middleware.OpenPause}),
			func(*message.Message) ([]*message.Message, error) {
				if runs.Add(1) == 1 {
					return nil, errTimeout
				}
				time.Sleep(2 * s)
				return nil, nil
			})
		h.deliver(order(t))
		time.Sleep(10 * s)
		synctest.Wait()
		for range 5 {
			m := order(t)
			go h.deliver(m)
		}
		time.Sleep(23 * s)
		synctest.Wait()
		require.Equal(t, int32(6), runs.Load(), "the trial has succeeded, the others follow")
		h.pipelineStop(t)
		time.Sleep(10 * s)
		synctest.Wait()
	})
}

func TestBreaker_PauseEndsAtShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		h := newHarness(t, breakerConfig(middleware.Breaker{Failures: 1, WhenOpen: middleware.OpenPause}),
			failing(errTimeout))
		h.ctx = ctx
		h.deliver(order(t))
		m := order(t)
		go h.deliver(m)
		time.Sleep(10 * s)
		synctest.Wait()
		stop()
		synctest.Wait()
		require.Equal(t, 1, h.nacked)
		require.Len(t, h.rescheduled, 1)
		h.pipelineStop(t)
	})
}

func TestBreaker_SkipsOnlyWhenAskedTo(t *testing.T) {
	skipped := 0
	cfg := breakerConfig(middleware.Breaker{Failures: 1, WhenOpen: middleware.OpenSkip})
	cfg.Hooks.OnSkip = func(_ context.Context, p middleware.SkipParams) error {
		skipped++
		require.ErrorIs(t, p.Decision.Err, middleware.ErrCircuitOpen)
		return nil
	}
	h := newHarness(t, cfg, failing(errTimeout))
	h.sendNow(order(t))
	h.sendNow(order(t))
	require.Equal(t, 1, skipped)
	require.Len(t, h.ran(), 1)

	m := order(t)
	m.Metadata[envelope.KeyRedriveID] = "entry-9"
	h.sendNow(m)
	require.Equal(t, 1, skipped, "a redriven message is deferred: skipping would close its entry as if it had worked")
	require.Empty(t, h.redriven)
}

func TestBreaker_Keys(t *testing.T) {
	cfg := breakerConfig(middleware.Breaker{Failures: 1, Key: func(m *message.Message) string {
		if m.Metadata["service"] == "" {
			panic("no service")
		}
		return m.Metadata["service"]
	}})
	h := newHarness(t, cfg, failing(errTimeout))
	for _, service := range []string{"payment", "mail", "payment", "mail", "", ""} {
		m := order(t)
		if service != "" {
			m.Metadata["service"] = service
		}
		h.sendNow(m)
	}
	require.Len(t, h.ran(), 3, "one failure for payment, one for mail, one for the handler itself")
	require.Contains(t, h.logs.String(), "Breaker.Key panicked")
}

// A permit that is not returned would keep the circuit half-open, and the handler uncalled, forever.
func TestBreaker_HalfOpenPermitIsAlwaysReturned(t *testing.T) {
	for name, end := range map[string]func(*message.Message, context.CancelFunc) error{
		"deferred": func(*message.Message, context.CancelFunc) error { return middleware.Defer(errTimeout, s) },
		"panic":    func(*message.Message, context.CancelFunc) error { panic("x") },
		"skip":     func(*message.Message, context.CancelFunc) error { return middleware.Skip(errTimeout) },
		"shutdown": func(_ *message.Message, stop context.CancelFunc) error { stop(); return context.Canceled },
		"hanging": func(*message.Message, context.CancelFunc) error {
			time.Sleep(time.Hour) // virtual
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				n := 0
				h := newHarness(t, breakerConfig(middleware.Breaker{Failures: 1}),
					func(m *message.Message) ([]*message.Message, error) {
						switch n++; n {
						case 1:
							return nil, errTimeout
						case 2:
							return nil, end(m, stop)
						default:
							return nil, nil
						}
					})
				h.deliver(order(t))
				time.Sleep(60 * s)
				synctest.Wait()
				h.ctx = ctx
				m := order(t)
				go h.deliver(m)
				synctest.Wait()
				h.pipelineStop(t)
				h.ctx = t.Context()
				time.Sleep(60 * s)
				synctest.Wait()
				h.deliver(order(t))
				require.Equal(t, 3, n, "the circuit lets messages through again")
				h.pipelineStop(t)
				time.Sleep(time.Hour)
				synctest.Wait()
			})
		})
	}
}

func TestCircuitOpenError(t *testing.T) {
	err := fmt.Errorf("x: %w", &middleware.CircuitOpenError{Key: "payment", Remaining: 40 * s})
	require.ErrorIs(t, err, middleware.ErrCircuitOpen)
	require.ErrorContains(t, err, `circuit of "payment" is open for another 40s`)
}
