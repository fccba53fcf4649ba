package middleware

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/envelope"
)

// circuitState is a state as observers and logs name it.
type circuitState string

const (
	circuitClosed   circuitState = "closed"
	circuitOpen     circuitState = "open"
	circuitHalfOpen circuitState = "half-open"
)

// probes is how many different messages must fail in a half-open circuit to open it again. With one, a message that
// always fails would keep the circuit open for all others whenever it happens to come first.
const probes = 3

// circuit is the state of one key. An error that is known to be the dependency's (a timeout, a refused connection)
// counts whenever it comes; an unknown one only with a message's first attempt, because one that fails at each of its
// attempts says no more about the dependency than one that fails once.
type circuit struct {
	circuits *circuits
	key      string

	troubled atomic.Bool // it is not closed, or a message has failed: all others need no lock

	mu      sync.Mutex
	opened  bool
	until   time.Time // when it half-opens, or when a half-open one forgets who has failed
	probing bool      // a message is trying out a half-open circuit
	failed  []string  // the messages that have failed in a row, no more than open it
	half    bool
}

// admit reports whether the message may be run, and otherwise when to ask again. That is never at once: while one
// message tries out a half-open circuit, the others must not come back in a hot loop.
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
		// The next round: those that failed in the last one may try again.
		c.half, c.failed, c.until = true, c.failed[:0], now.Add(c.circuits.config.Delay)
	}
	switch {
	case slices.Contains(c.failed, id):
		remaining = max(c.until.Sub(now), minDefer) // it has had its try
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

// succeeded closes the circuit: the dependency has done its part.
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

// ended tells the circuit how an attempt that failed ended. It must be told of every attempt: while one tries out a
// half-open circuit, no other may.
func (c *circuit) ended(dec *Decision) {
	switch {
	case dec.Verdict.Kind == KindDefer, dec.Outcome == OutcomeGiveBack:
		c.mu.Lock()
		c.probing = false // it did not find out whether the dependency is up: the next one does
		c.mu.Unlock()
	case dec.Outcome == OutcomeRetry, dec.Reason == envelope.ReasonExhausted, dec.Reason == envelope.ReasonExpired:
		c.failure(dec.Attempt.MessageID, dec.Verdict.Kind != KindUnknown || dec.Attempt.Number == 1)
	default:
		c.succeeded()
	}
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
