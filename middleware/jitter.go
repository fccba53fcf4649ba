package middleware

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Jitter is a way of spreading retries, so that a thousand messages that failed together are not retried together.
type Jitter int

const (
	// FullJitter draws from 0 to the delay: the widest spread, and the least load on a recovering service.
	FullJitter Jitter = iota + 1
	// EqualJitter draws from half the delay to the delay: it never retries at once.
	EqualJitter
)

// String returns the name of j.
func (j Jitter) String() string {
	switch j {
	case FullJitter:
		return "full jitter"
	case EqualJitter:
		return "equal jitter"
	default:
		return fmt.Sprintf("Jitter(%d)", int(j))
	}
}

// WithJitter spreads the delays of b at random. The result is safe for concurrent use.
func WithJitter(b Backoff, j Jitter) Backoff {
	return jittered{b, j, func(int) float64 { return rand.Float64() }} //nolint:gosec // spreading load is not a secret
}

// WithSeededJitter spreads the delays of b by a pure function of seed and retry: the same seed gives the same delays in
// every process, for tests and for "explain". All messages share these delays, so use [WithJitter] in production.
func WithSeededJitter(b Backoff, j Jitter, seed uint64) Backoff {
	return jittered{b, j, func(retry int) float64 {
		return rand.New(rand.NewPCG(seed, uint64(max(retry, 1)))).Float64() //nolint:gosec // spreading load is not a secret
	}}
}

// draws reports whether the delays of b are random.
func draws(b Backoff) bool {
	switch b := b.(type) {
	case jittered:
		return true
	case capped:
		return draws(b.backoff)
	default:
		return false
	}
}

// base returns the base from which b's delays grow; 0 if they do not grow from one.
func base(b Backoff, original time.Duration) time.Duration {
	switch b := b.(type) {
	case jittered:
		return base(b.backoff, original)
	case capped:
		return base(b.backoff, original)
	case exponential:
		return b.from(original)
	default:
		return 0
	}
}

type jittered struct {
	backoff Backoff
	kind    Jitter
	// draw returns a number in [0, 1).
	draw func(retry int) float64
}

// Delay implements [Backoff].
func (j jittered) Delay(retry int, original time.Duration) time.Duration {
	d := max(0, j.backoff.Delay(retry, original))
	switch j.kind {
	case FullJitter:
		return between(0, d, j.draw(retry))
	case EqualJitter:
		return between(d/2, d, j.draw(retry))
	default:
		return d
	}
}

// between maps r in [0, 1) to [low, high].
func between(low, high time.Duration, r float64) time.Duration {
	span := float64(high-low) * r
	if span >= float64(high-low) || math.IsNaN(span) {
		return high
	}
	return low + time.Duration(span)
}

func (j jittered) String() string { return fmt.Sprintf("%v, %v", j.backoff, j.kind) }

func (j jittered) validate() error {
	var errs []error
	if j.kind != FullJitter && j.kind != EqualJitter {
		errs = append(errs, fmt.Errorf("unknown jitter %d: use FullJitter or EqualJitter", int(j.kind)))
	}
	return errors.Join(append(errs, validateBackoff(j.backoff))...)
}
