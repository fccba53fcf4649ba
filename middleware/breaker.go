package middleware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/internal/wait"
)

// Breaker configures the circuit breaker of a pipeline: after several failures in a row a handler is not called for a
// while, because its dependency is down and needs no more load. Only retryable errors count as failures, and unknown
// ones once per message: neither a thousand invalid orders nor one order that fails a thousand times for an unknown
// reason is evidence against the payment service.
type Breaker struct {
	// Failures is the number of failures in a row that open the circuit. Defaults to 5.
	Failures int
	// Delay is how long it stays open. Then single messages are let through, one after the other: the first success closes
	// the circuit, three different failing messages open it for another Delay. Defaults to 60 s.
	Delay time.Duration
	// Key returns the circuit that a message belongs to, for handlers that depend on several services. There must be few
	// different keys. Defaults to the handler's name: one circuit per handler.
	Key func(m *message.Message) string
	// WhenOpen is what happens to messages while the circuit is open. Defaults to OpenDefer.
	WhenOpen WhenOpen
}

// WhenOpen is what happens to messages when the circuit is open.
type WhenOpen int

const (
	// OpenDefer reschedules the message for when the circuit may let it through. No attempt is consumed.
	OpenDefer WhenOpen = iota
	// OpenPause makes the message wait in place, unacked, which accepts no more messages than the subscriber delivers at
	// once. After [Breaker.Delay] the message is deferred, because no broker waits forever.
	OpenPause
	// OpenSkip acks the message: it is lost, except for a log line and a hook.
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

// circuits holds one circuit per key, created when the key first occurs.
type circuits struct {
	pipeline *Pipeline
	config   Breaker

	mu    sync.RWMutex
	byKey map[string]*circuit
}

func newCircuits(p *Pipeline, b Breaker) *circuits {
	b.Failures, b.Delay = cmp.Or(b.Failures, 5), cmp.Or(b.Delay, time.Minute)
	return &circuits{pipeline: p, config: b, byKey: make(map[string]*circuit)}
}

// admit returns the circuit to which the attempt's result must be reported, or the reason why the attempt must not be
// made.
func (c *circuits) admit(ctx context.Context, m *message.Message, id string) (*circuit, *CircuitOpenError) {
	own := c.circuit(c.key(ctx, m))
	admitted, remaining := own.admit(id) //nolint:contextcheck // a change of state belongs to no single message
	if admitted {
		return own, nil
	}
	if c.config.WhenOpen == OpenPause {
		for until := time.Now().Add(c.config.Delay); time.Now().Before(until); {
			if wait.For(ctx, min(remaining, time.Until(until))) != nil {
				break
			}
			if admitted, remaining = own.admit(id); admitted { //nolint:contextcheck // a change of state belongs to no single message
				return own, nil
			}
		}
	}
	return nil, &CircuitOpenError{Key: own.key, Remaining: remaining}
}

func (c *circuits) key(ctx context.Context, m *message.Message) (key string) {
	if c.config.Key == nil {
		return c.pipeline.handlerName(ctx)
	}
	defer func() {
		if r := recover(); r != nil {
			c.pipeline.log(ctx, slog.LevelError, "Breaker.Key panicked; using the handler's name as the key",
				slog.String("error", newPanicError(r).Error()))
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
	own = &circuit{circuits: c, key: key}
	c.byKey[key] = own
	return own
}

func (c *circuits) changed(key string, from, to circuitState) {
	p, ctx := c.pipeline, context.Background() // a change of state belongs to no single message
	level := slog.LevelInfo
	if to == circuitOpen {
		level = slog.LevelWarn
	}
	p.log(ctx, level, "circuit changed",
		slog.String("circuit", key), slog.String("to", string(to)), slog.String("from", string(from)),
		slog.Duration("delay", c.config.Delay))
	observe(ctx, p, Observer.BreakerChanged, BreakerChanged{Key: key, From: string(from), To: string(to)})
}
