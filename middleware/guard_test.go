package middleware_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// hostileError panics in the chosen methods.
type hostileError struct{ in string }

func (e *hostileError) Error() string {
	if e.in == "Error" {
		panic("Error")
	}
	return "hostile"
}

func (e *hostileError) Unwrap() error {
	if e.in == "Unwrap" {
		panic("Unwrap")
	}
	return nil
}

func (e *hostileError) Is(error) bool {
	if e.in == "Is" {
		panic("Is")
	}
	return false
}

func (e *hostileError) As(any) bool {
	if e.in == "As" {
		panic("As")
	}
	return false
}

func (e *hostileError) Code() string {
	if e.in == "Code" {
		panic("Code")
	}
	return ""
}

func (e *hostileError) Timeout() bool {
	if e.in == "Timeout" {
		panic("Timeout")
	}
	return false
}

type hostileObserver struct{}

func (hostileObserver) Started(context.Context, middleware.Started) context.Context {
	panic("observer")
}

func (hostileObserver) Finished(context.Context, middleware.Finished) { panic("observer") }

func (hostileObserver) RetryScheduled(context.Context, middleware.RetryScheduled) { panic("observer") }

func (hostileObserver) DeadLettered(context.Context, middleware.DeadLettered) { panic("observer") }

func (hostileObserver) PublishFailed(context.Context, middleware.PublishFailed) { panic("observer") }

func (hostileObserver) BreakerChanged(context.Context, middleware.BreakerChanged) { panic("observer") }

func (hostileObserver) Stamp(context.Context, *message.Message) { panic("observer") }

// endlessError wraps itself: errors.Is and errors.As never returned, and held a processor and a consumer forever.
type endlessError struct{}

func (endlessError) Error() string   { return "timeout" }
func (e endlessError) Unwrap() error { return e }

type endlessTwiceError struct{}

func (endlessTwiceError) Error() string     { return "timeout" }
func (e endlessTwiceError) Unwrap() []error { return []error{e, e} }

// recursiveError wraps itself and prints what it wraps: its text overflowed the stack, which ends the process.
type recursiveError struct{}

func (e recursiveError) Error() string { return "order: " + e.Unwrap().Error() }
func (e recursiveError) Unwrap() error { return e }

type hostileHandler struct{ slog.Handler }

func (hostileHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (hostileHandler) Handle(context.Context, slog.Record) error { panic("logger") }

type hostileLevels struct{ slog.Handler }

func (hostileLevels) Enabled(context.Context, slog.Level) bool { panic("logger") }

// Foreign code may panic in every run of a message: the message still has its four runs and one dead letter, and a
// half-open circuit gets its permit back.
func TestPipeline_ForeignCodeMayPanic(t *testing.T) {
	var closed *net.OpError
	joined := errors.Join(errors.New("both"), closed)
	cases := map[string]struct {
		err    error
		change func(*middleware.Config)
	}{
		"a typed nil":          {err: closed},
		"a typed nil, wrapped": {err: middleware.Retryable(closed)},
		"a typed nil, joined":  {err: joined},
		"itself, wrapped":      {err: middleware.Retryable(endlessError{})},
		"itself, twice":        {err: endlessTwiceError{}},
		"itself, printed":      {err: recursiveError{}},
		"Match": {change: func(c *middleware.Config) {
			c.Rules = []middleware.Rule{middleware.MatchFunc(func(error) bool { panic("rule") }, middleware.KindSkip, "x")}
		}},
		"Backoff": {change: func(c *middleware.Config) {
			c.Backoff = middleware.BackoffFunc(func(int, time.Duration) time.Duration { panic("backoff") })
		}},
		"HandlerName":     {change: func(c *middleware.Config) { c.HandlerName = panickyName }},
		"Observer":        {change: func(c *middleware.Config) { c.Observer = hostileObserver{} }},
		"Logger":          {change: func(c *middleware.Config) { c.Logger = slog.New(hostileHandler{slog.DiscardHandler}) }},
		"Logger's levels": {change: func(c *middleware.Config) { c.Logger = slog.New(hostileLevels{slog.DiscardHandler}) }},
		"Breaker.Key": {change: func(c *middleware.Config) {
			c.Breaker.Key = func(*message.Message) string { panic("key") }
		}},
		"OnRetry": {change: func(c *middleware.Config) {
			c.Hooks.OnRetry = func(context.Context, middleware.RetryParams) error { panic("hook") }
		}},
		"OnDeadLetter": {change: func(c *middleware.Config) {
			c.Hooks.OnDeadLetter = func(context.Context, middleware.DeadLetterParams) error { panic("hook") }
		}},
		"a hook's error": {change: func(c *middleware.Config) {
			c.Hooks.OnRetry = func(context.Context, middleware.RetryParams) error { return closed }
		}},
		"OnPermanent's built-in rules": {
			change: func(c *middleware.Config) { c.BuiltinRules = middleware.BuiltinRulesOff },
			err:    closed,
		},
		"Redriven": {},
	}
	for _, in := range []string{"Error", "Unwrap", "Is", "As", "Code", "Timeout"} {
		cases["an error's "+in] = struct {
			err    error
			change func(*middleware.Config)
		}{err: &hostileError{in}}
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := middleware.Config{Backoff: middleware.Constant(2 * time.Minute), Breaker: &middleware.Breaker{Failures: 1}}
				if tt.change != nil {
					tt.change(&cfg)
				}
				err := tt.err
				if err == nil {
					err = errTimeout
				}
				h := newHarness(t, cfg, failing(err))
				h.send(order(t), time.Hour)
				require.Len(t, h.runs, 4)
				require.Equal(t, envelope.ReasonExhausted, h.letter().Reason)
				require.Zero(t, h.nacked)
			})
		})
	}
}

// A port that panics has failed: the message is nacked, with pauses, and settled when the port works again.
func TestPipeline_PortsMayPanic(t *testing.T) {
	for name, value := range map[string]error{
		"a typed nil": (*hostileError)(nil), "itself": endlessError{}, "itself, printed": recursiveError{},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var calls atomic.Int32
				h := newHarness(t, middleware.Config{
					DeadLetters: middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error {
						if calls.Add(1) < 10 {
							panic(value)
						}
						return nil
					}),
				}, failing(middleware.Permanent((*net.OpError)(nil))))
				h.send(order(t), time.Minute)
				require.EqualValues(t, 10, calls.Load())
				require.Equal(t, 1, h.acked)
				require.Equal(t, 2, h.nacked)
			})
		})
	}
}

// The error of a port may panic like any other: it used to escape from the pipeline, and the message was redelivered at
// once and uncounted.
func TestPipeline_PortsErrorsMayPanic(t *testing.T) {
	for in, err := range map[string]error{
		"Error": &hostileError{"Error"}, "Unwrap": &hostileError{"Unwrap"}, "Is": &hostileError{"Is"},
		"As": &hostileError{"As"}, "itself": endlessError{}, "itself, twice": endlessTwiceError{},
		"itself, printed": recursiveError{},
	} {
		t.Run(in, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, middleware.Config{MaxAttempts: 2}, failing(errTimeout))
				for _, port := range []*faults{&h.reschedules, &h.sinks} {
					port.n, port.err = 6, err
				}
				h.send(order(t), time.Hour)
				require.Equal(t, 7, h.reschedules.calls)
				require.Equal(t, 7, h.sinks.calls)
				require.Equal(t, 2, h.acked)
				require.Equal(t, 2, h.nacked, "after four tries with pauses")
			})
		})
	}
}
