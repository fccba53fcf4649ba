package middleware

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/envelope"
)

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
	probing bool      // a message is probing a half-open circuit
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
		// The next round: messages that failed in the last one may try again.
		c.half, c.failed, c.until = true, c.failed[:0], now.Add(c.circuits.config.Delay)
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
	switch {
	case dec.Verdict.Kind == KindDefer, dec.Outcome == OutcomeGiveBack:
		c.mu.Lock()
		c.probing = false // the outcome shows nothing about the dependency: the next attempt probes it
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
