package middleware_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// All faults are reported at once, and none waits to panic at the first failure.
func TestNew_NamesEveryFault(t *testing.T) {
	_, err := middleware.New(middleware.Config{
		MaxAttempts: -1, Backoff: middleware.Steps(), OnPermanent: middleware.OutcomeReturn, OnUnknown: 99, BuiltinRules: 9,
		Rules: []middleware.Rule{{Name: "half"}},
		Handlers: map[string]middleware.HandlerConfig{
			"orders": {MaxAttempts: 1_000_001, Backoff: middleware.WithCap(middleware.WithJitter(nil, 7), -s)},
		},
		DeferDelay: -s, MaxDeferAge: -s, HookTimeout: -s, PublishTimeout: -s, PublishTries: -1, NackDelay: -s,
		SystemEvents: map[string]message.NoPublishHandlerFunc{"system.ping.1": nil},
		Breaker:      &middleware.Breaker{Failures: -1, Delay: -s, WhenOpen: 7},
	})
	for _, want := range []string{
		"middleware: invalid config: ",
		"DeadLetters is required: pass the broker",
		"Rescheduler is required: pass the broker, or middleware.HoldInMemory",
		"MaxAttempts is -1: it counts runs including the first",
		"Backoff: Steps needs at least one delay",
		"OnPermanent is return",
		"OnUnknown is Outcome(99)",
		"BuiltinRules is 9",
		`Rules 1 ("half"): Match is required`,
		`Handlers["orders"].MaxAttempts is 1000001`,
		`Handlers["orders"].Backoff: backoff capped at -1s`,
		"unknown jitter 7",
		"backoff is nil",
		"DeferDelay is -1s", "MaxDeferAge is -1s", "HookTimeout is -1s", "PublishTimeout is -1s", "PublishTries is -1",
		"NackDelay is -1s",
		`SystemEvents["system.ping.1"]`,
		"Breaker.Failures is -1", "Breaker.Delay is -1s", "Breaker.WhenOpen is 7",
	} {
		require.ErrorContains(t, err, want)
	}
}

func TestNew_RefusesEmptySinksAndBrokenBackoffs(t *testing.T) {
	for want, cfg := range map[string]middleware.Config{
		"DeadLetters is a nil *middleware_test.harness: was the error of its constructor checked?": {DeadLetters: (*harness)(
			nil)},
		"Rescheduler is a nil middleware.ReschedulerFunc": {
			DeadLetters: keep,
			Rescheduler: middleware.ReschedulerFunc(nil),
		},
		"DeadLetters: Sinks is empty":         {DeadLetters: middleware.Sinks{}},
		"DeadLetters: sink 2 is nil":          {DeadLetters: middleware.Sinks{keep, nil}},
		"DeadLetters: sink 1: Sinks is empty": {DeadLetters: middleware.Sinks{middleware.Sinks(nil), keep}},
		"DeadLetters: sink 1: sink 2 is a nil *middleware_test.harness": {
			DeadLetters: middleware.Sinks{middleware.Sinks{keep, (*harness)(nil)}},
		},
		"Fallback: Sinks is empty": {DeadLetters: keep, Fallback: middleware.Sinks(nil)},
		"Fallback: sink 2 is nil":  {DeadLetters: keep, Fallback: middleware.Sinks{keep, nil}},
		"backoff is nil":           {DeadLetters: keep, Backoff: middleware.BackoffFunc(nil)},
		"capped at 0s":             {DeadLetters: keep, Rescheduler: asksFirst{}, Backoff: middleware.WithCap(nil, 0)},
		"with delays of up to 1s":  {DeadLetters: keep, Rescheduler: asksFirst{}, Backoff: brokenBackoff},
		"step 2 is -1s":            {DeadLetters: keep, Backoff: middleware.Steps(s, -s)},
		"constant backoff":         {DeadLetters: keep, Backoff: middleware.Constant(-s)},
		"from -1s":                 {DeadLetters: keep, Backoff: middleware.FromOriginalDelay(-s)},
		"with factor 0.5":          {DeadLetters: keep, Backoff: middleware.Exponential(s, 0.5)},
		"MaxAttempts is -1":        middleware.Laravel(-1),
	} {
		_, err := middleware.New(cfg)
		require.ErrorContains(t, err, want)
	}
}

var brokenBackoff = middleware.BackoffFunc(func(int, time.Duration) time.Duration { panic("backoff") })

// asksFirst refuses every delay.
type asksFirst struct{ middleware.ReschedulerFunc }

func (asksFirst) CanReschedule(time.Duration) error { return errors.New("no delays") }

// A sink without room for a dead letter is left out if another has stored it, also in a list within a list and in the
// fallback, where the letter counted as lost and the message was handled again and again.
func TestSinks_OneWithoutRoom(t *testing.T) {
	fails := func(err error) middleware.DeadLetterSink {
		return middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { return err })
	}
	both := middleware.Sinks{keep, fails(envelope.ErrTooLarge)}
	for name, tt := range map[string]struct {
		cfg  middleware.Config
		want error
	}{
		"one list":       {cfg: middleware.Config{DeadLetters: both}},
		"within another": {cfg: middleware.Config{DeadLetters: middleware.Sinks{both}}},
		"the fallback":   {cfg: middleware.Config{DeadLetters: fails(errTimeout), Fallback: both}},
		"none has room": {
			cfg: middleware.Config{DeadLetters: middleware.Sinks{both[1:], both[1]}}, want: envelope.ErrTooLarge,
		},
		"another is down": {
			cfg: middleware.Config{DeadLetters: middleware.Sinks{append(both, fails(errTimeout))}}, want: errTimeout,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tt.cfg.Rescheduler, tt.cfg.Logger = rescheduleNowhere, quiet
				pipeline, err := middleware.New(tt.cfg)
				require.NoError(t, err)
				_, err = pipeline.Middleware(failing(middleware.Permanent(errTimeout)))(order(t))
				require.ErrorIs(t, err, tt.want)
			})
		})
	}
}

// A list of sinks that is empty stored nothing and reported no error.
func TestSinks_NoneStoreNothing(t *testing.T) {
	for _, none := range []middleware.DeadLetterSink{
		middleware.Sinks(nil), middleware.Sinks{}, middleware.Sinks{keep, middleware.Sinks{}},
	} {
		require.ErrorContains(t, none.DeadLetter(t.Context(), &envelope.DeadLetter{}), "no dead letter sink")
	}
}

func TestNew_DoesNotKeepTheCallersConfig(t *testing.T) {
	delays := []time.Duration{s}
	cfg := middleware.Config{DeadLetters: keep, Rescheduler: rescheduleNowhere, Backoff: middleware.Steps(delays...)}
	p, err := middleware.New(cfg)
	require.NoError(t, err)
	delays[0], cfg.MaxAttempts = time.Hour, 1
	require.Equal(t, s, p.Decide(order(t), errTimeout).Delay)
}

// A handler's own rules are consulted before the general ones; fields that it leaves out are inherited.
func TestConfig_HandlersInherit(t *testing.T) {
	h := newHarness(t, middleware.Config{
		OnPermanent: middleware.OutcomeSkip,
		Rules:       []middleware.Rule{middleware.MatchError(errTimeout, middleware.KindSkip, "general")},
		Handlers: map[string]middleware.HandlerConfig{"billing-handler": {Rules: []middleware.Rule{middleware.MatchError(
			errTimeout, middleware.KindPermanent, "own")}}},
	}, failing(errTimeout))
	d := h.pipeline.Decide(order(t), errTimeout)
	require.Equal(t, "own", d.Verdict.Rule)
	require.Equal(t, middleware.OutcomeSkip, d.Outcome)
}

func TestConfig_HandlerNameThatPanics(t *testing.T) {
	cfg := middleware.Config{
		HandlerName: panickyName,
		Handlers:    map[string]middleware.HandlerConfig{"x": {MaxAttempts: 1}},
	}
	h := newHarness(t, cfg, failing(middleware.Permanent(errTimeout)))
	h.sendNow(order(t))
	require.Empty(t, h.letter().Handler)
}
