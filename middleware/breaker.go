package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/redrive-go/redrive/envelope"
)

// Breaker configures the circuit breaker of a pipeline: after some failures in a row a handler is not called for a
// while, because what it depends on is down and needs no more load. Only errors that are to be retried count as
// failures: a thousand invalid orders say nothing about the payment service.
type Breaker struct {
	// Failures in a row open the circuit. Defaults to 5.
	Failures int
	// Delay is how long it stays open. Then one message is let through: its success closes the circuit, its failure
	// opens it for another Delay. Defaults to 60 s.
	Delay time.Duration
	// Key returns which circuit a message belongs to, for handlers that depend on several services. There must be few
	// different keys. Defaults to the handler's name: one circuit per handler.
	Key func(m *message.Message) string
	// WhenOpen says what becomes of messages while the circuit is open. Defaults to OpenDefer.
	WhenOpen WhenOpen
}

// WhenOpen is what becomes of messages that meet an open circuit.
type WhenOpen int

const (
	// OpenDefer reschedules the message for when the circuit will let it through. No attempt is consumed.
	OpenDefer WhenOpen = iota
	// OpenPause makes the message wait where it is, unacked, which takes in no more messages than the subscriber hands
	// out at once. After [Breaker.Delay] the message is deferred, for no broker waits for ever.
	OpenPause
	// OpenSkip acks the message: it is lost, but for a log line and a hook.
	OpenSkip
)

func (b *Breaker) validate() error {
	var errs []error
	if b.Failures < 0 {
		errs = append(errs, fmt.Errorf("Breaker.Failures is %d: it cannot be negative; 0 is the default of 5", b.Failures))
	}
	if b.Delay < 0 {
		errs = append(errs, fmt.Errorf("Breaker.Delay is %s: it cannot be negative; 0 is the default of 60s", b.Delay))
	}
	if b.WhenOpen < OpenDefer || b.WhenOpen > OpenSkip {
		errs = append(errs, fmt.Errorf("Breaker.WhenOpen is %d: use OpenDefer, OpenPause or OpenSkip", int(b.WhenOpen)))
	}
	return errors.Join(errs...)
}

// circuits holds one circuit a key, made when the key is first seen.
type circuits struct {
	pipeline *Pipeline
	config   Breaker

	mu    sync.RWMutex
	byKey map[string]*circuit
}

type circuit struct {
	key     string
	breaker circuitbreaker.CircuitBreaker[any]
}

func newCircuits(p *Pipeline, b Breaker) *circuits {
	setDefault(&b.Failures, 5)
	setDefault(&b.Delay, time.Minute)
	return &circuits{pipeline: p, config: b, byKey: make(map[string]*circuit)}
}

// admit returns the circuit that must be told how the attempt ended, or why there is none to be made.
func (c *circuits) admit(ctx context.Context, m *message.Message) (*circuit, *CircuitOpenError) {
	own := c.circuit(c.key(ctx, m)) //nolint:contextcheck // a change of state belongs to no single message
	if own.breaker.TryAcquirePermit() {
		return own, nil
	}
	if c.config.WhenOpen == OpenPause {
		for until := time.Now().Add(c.config.Delay); time.Now().Before(until); {
			if !wait(ctx, min(c.remaining(own), time.Until(until))) {
				break
			}
			if own.breaker.TryAcquirePermit() {
				return own, nil
			}
		}
	}
	return nil, &CircuitOpenError{Key: own.key, Remaining: c.remaining(own)}
}

// remaining is never 0: while one message tries out a half-open circuit, the others must not come back in a hot loop.
func (c *circuits) remaining(own *circuit) time.Duration {
	if d := own.breaker.RemainingDelay(); d > 0 {
		return d
	}
	return min(max(c.config.Delay/20, minDefer), 5*time.Second)
}

func (c *circuits) key(ctx context.Context, m *message.Message) (key string) {
	if c.config.Key == nil {
		return c.pipeline.handlerName(ctx)
	}
	defer func() {
		if r := recover(); r != nil {
			c.pipeline.cfg.Logger.LogAttrs(ctx, slog.LevelError, "Breaker.Key panicked; the handler's name is the key", slog.String("error", newPanicError(r).Error()))
			key = c.pipeline.handlerName(ctx)
		}
	}()
	return c.config.Key(m)
}

func (c *circuits) circuit(key string) *circuit {
	c.mu.RLock()
	own := c.byKey[key]
	c.mu.RUnlock()
	if own != nil {
		return own
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if own := c.byKey[key]; own != nil {
		return own
	}
	own = &circuit{key: key, breaker: circuitbreaker.NewBuilder[any]().
		WithFailureThreshold(uint(c.config.Failures)).
		WithSuccessThreshold(1).
		WithDelay(c.config.Delay).
		OnStateChanged(func(e circuitbreaker.StateChangedEvent) { c.changed(key, e) }).
		Build()}
	c.byKey[key] = own
	return own
}

func (c *circuits) changed(key string, e circuitbreaker.StateChangedEvent) {
	p := c.pipeline
	level := slog.LevelInfo
	if e.NewState == circuitbreaker.OpenState {
		level = slog.LevelWarn
	}
	ctx := e.Context()
	p.cfg.Logger.LogAttrs(ctx, level, "circuit changed", slog.String("circuit", key), slog.String("to", e.NewState.String()), slog.String("from", e.OldState.String()), slog.Duration("delay", c.config.Delay))
	if p.cfg.Observer != nil {
		p.observeBreaker(ctx, BreakerChanged{Key: key, From: e.OldState.String(), To: e.NewState.String()})
	}
}

func (c *circuit) succeeded() { c.breaker.RecordSuccess() }

// failed tells the circuit how the attempt ended. It must be told of every attempt: in the half-open state the permit
// is given back by that alone.
func (c *circuit) failed(dec Decision) {
	switch {
	case dec.Verdict.Kind == KindDefer, dec.Outcome == OutcomeGiveBack:
		if c.breaker.IsHalfOpen() {
			c.breaker.RecordFailure() // the attempt did not find out whether the dependency is up
		}
	case dec.Outcome == OutcomeRetry, dec.Reason == envelope.ReasonExhausted, dec.Reason == envelope.ReasonExpired:
		c.breaker.RecordFailure()
	default:
		c.breaker.RecordSuccess() // the dependency has done its part
	}
}
