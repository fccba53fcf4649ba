package middleware

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
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

func (c *circuits) key(ctx context.Context, m *message.Message) string {
	key := c.pipeline.handlerName(ctx)
	if c.config.Key == nil {
		return key
	}
	if err := guarded(func() error { key = c.config.Key(m); return nil }); err != nil {
		c.pipeline.log(ctx, slog.LevelError, "Breaker.Key panicked; using the handler's name as the key",
			slog.String("error", err.Error()))
	}
	return key
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

// circuitState is a circuit's state as named by observers and logs.
type circuitState string

const (
	circuitClosed   circuitState = "closed"
	circuitOpen     circuitState = "open"
	circuitHalfOpen circuitState = "half-open"
)

// probes is how many different messages must fail in a half-open circuit to open it again. With one, a message that
// always fails would keep the circuit open for all others whenever it happens to come first.
const probes = 3

// circuit is the state of one key. An error known to be the dependency's (a timeout, a refused connection) always
// counts; an unknown one only on a message's first attempt, because a message that fails every attempt is no more
// evidence against the dependency than one that fails once.
type circuit struct {
	circuits *circuits
	key      string

	troubled atomic.Bool // it is not closed, or a message has failed; otherwise no lock is needed

	mu      sync.Mutex
	opened  bool
	until   time.Time // when it half-opens, or when a half-open one forgets the failed messages
	probing bool      // a message is probing a half-open circuit, in this round
	failed  []string  // the messages that failed in a row, at most as many as open it
	half    bool
}

// admit reports whether the message may be run, and otherwise how long to wait before asking again. That is never zero:
// while one message probes a half-open circuit, the others must not return in a hot loop.
func (c *circuit) admit(id string) (admitted bool, remaining time.Duration) {
	if !c.troubled.Load() {
		return true, 0
	}
	c.mu.Lock()
	if !c.opened {
		c.mu.Unlock()
		return true, 0
	}
	now := time.Now()
	if left := c.until.Sub(now); !c.half && left > 0 {
		c.mu.Unlock()
		return false, left
	}
	halfOpened := !c.half
	if halfOpened || !now.Before(c.until) {
		// The next round: messages that failed in the last one may try again, and a probe that hangs blocks nothing.
		c.half, c.probing, c.failed, c.until = true, false, c.failed[:0], now.Add(c.circuits.config.Delay)
	}
	switch {
	case slices.Contains(c.failed, id):
		remaining = max(c.until.Sub(now), minDefer) // it has had its attempt
	case c.probing:
		remaining = min(max(c.circuits.config.Delay/20, minDefer), 5*time.Second)
	default:
		c.probing, admitted = true, true
	}
	c.mu.Unlock()
	if halfOpened {
		c.circuits.changed(c.key, circuitOpen, circuitHalfOpen)
	}
	return admitted, remaining
}

// succeeded closes the circuit, because the dependency works.
func (c *circuit) succeeded() {
	if !c.troubled.Load() {
		return
	}
	c.mu.Lock()
	from := c.state()
	if from == circuitOpen { // it was running when the circuit opened
		c.mu.Unlock()
		return
	}
	c.troubled.Store(false)
	c.opened, c.half, c.probing, c.failed = false, false, false, c.failed[:0]
	c.mu.Unlock()
	if from != circuitClosed {
		c.circuits.changed(c.key, from, circuitClosed)
	}
}

// ended reports to the circuit how a failed attempt ended. It must be called for every attempt: while one probes a
// half-open circuit, no other may run.
func (c *circuit) ended(dec *Decision) {
	kind := dec.Verdict.Kind
	failed := dec.Outcome == OutcomeRetry || kind == KindUnknown || kind == KindRetryable ||
		dec.Reason == envelope.ReasonExpired // also where the policy does not retry
	if failed && kind != KindDefer && dec.Outcome != OutcomeReturn {
		c.failure(dec.Attempt.MessageID, kind != KindUnknown || dec.Attempt.Number == 1)
		return
	}
	c.mu.Lock()
	c.probing = false // the outcome, such as an invalid message, shows nothing about the dependency: the next probes it
	c.mu.Unlock()
}

func (c *circuit) failure(id string, telling bool) {
	c.mu.Lock()
	c.probing = false
	from := c.state()
	if from == circuitOpen { // it was running when the circuit opened
		c.mu.Unlock()
		return
	}
	c.troubled.Store(true)
	limit := c.circuits.config.Failures
	if c.half {
		limit = probes
	}
	if telling || c.half && !slices.Contains(c.failed, id) {
		c.failed = append(c.failed, id)
	}
	opens := len(c.failed) >= limit
	if opens {
		c.opened, c.half, c.until = true, false, time.Now().Add(c.circuits.config.Delay)
	}
	c.mu.Unlock()
	if opens {
		c.circuits.changed(c.key, from, circuitOpen)
	}
}

// state must be called with mu.
func (c *circuit) state() circuitState {
	switch {
	case c.half:
		return circuitHalfOpen
	case c.opened:
		return circuitOpen
	default:
		return circuitClosed
	}
}
