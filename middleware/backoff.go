package middleware

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"
)

// Backoff determines how long a failed message waits before its next attempt.
//
// Delay is a pure function, apart from jitter: it keeps no state between calls, so one Backoff serves every message and
// every goroutine, and a retry scheduled by another process after a crash waits just as long.
type Backoff interface {
	// Delay returns the wait before the given retry. retry counts from 1; smaller values are treated as 1. original is the
	// message's first-delivery delay (x-original-delay), 0 if it had none. The result is never negative and never
	// overflows: a delay that does not fit becomes the longest [time.Duration].
	Delay(retry int, original time.Duration) time.Duration
}

// BackoffFunc adapts a function to [Backoff].
type BackoffFunc func(retry int, original time.Duration) time.Duration

// Delay calls f.
func (f BackoffFunc) Delay(retry int, original time.Duration) time.Duration {
	return f(retry, original)
}

const longest = time.Duration(math.MaxInt64)

// validator is implemented by the backoffs of this package. Constructors that return errors would lengthen every wiring
// by three lines, so [New] checks the arguments together with everything else.
type validator interface{ validate() error }

// None retries at once.
func None() Backoff { return constant(0) }

// Constant waits the same time before every retry.
func Constant(d time.Duration) Backoff { return constant(d) }

type constant time.Duration

// Delay implements [Backoff].
func (c constant) Delay(int, time.Duration) time.Duration { return max(0, time.Duration(c)) }

func (c constant) String() string {
	if c <= 0 {
		return "at once"
	}
	return "every " + time.Duration(c).String()
}

func (c constant) validate() error {
	if c < 0 {
		return fmt.Errorf("constant backoff of %s: a delay cannot be negative", time.Duration(c))
	}
	return nil
}

// Steps waits the first delay before the first retry, the second before the second, and repeats the last one if there
// are more retries than steps.
func Steps(delays ...time.Duration) Backoff {
	return steps(append([]time.Duration(nil), delays...))
}

type steps []time.Duration

// Delay implements [Backoff].
func (s steps) Delay(retry int, _ time.Duration) time.Duration {
	if len(s) == 0 {
		return 0
	}
	return max(0, s[min(max(retry, 1), len(s))-1])
}

func (s steps) String() string {
	texts := make([]string, len(s))
	for i, d := range s {
		texts[i] = d.String()
	}
	return "steps " + strings.Join(texts, ", ")
}

func (s steps) validate() error {
	if len(s) == 0 {
		return errors.New("Steps needs at least one delay; None() retries at once")
	}
	for i, d := range s {
		if d < 0 {
			return fmt.Errorf("step %d is %s: a delay cannot be negative", i+1, d)
		}
	}
	return nil
}

// FromOriginalDelay doubles the message's own first-delivery delay: original * 2^(retry-1). A message first delivered
// after 10 s is retried after 10, 20 and 40 s. fallback is the base for messages without such a delay. A retry never
// changes the original delay.
func FromOriginalDelay(fallback time.Duration) Backoff {
	return exponential{base: fallback, factor: 2, fromOriginal: true}
}

// Exponential waits base * factor^(retry-1), regardless of the first-delivery delay. factor must be at least 1.
func Exponential(base time.Duration, factor float64) Backoff {
	return exponential{base: base, factor: factor}
}

type exponential struct {
	base         time.Duration
	factor       float64
	fromOriginal bool
}

// Delay works on floats because they saturate: 10 s * 2^30 is negative as a time.Duration, and 10 s * 2^62 is 0.
func (e exponential) Delay(retry int, original time.Duration) time.Duration {
	base := e.from(original)
	if base <= 0 {
		return 0
	}
	if e.factor == 2 && retry <= 31 {
		// The common case is exact to the nanosecond, beyond the 53 bits of a float.
		shift := max(retry, 1) - 1
		if base > longest>>shift {
			return longest
		}
		return base << shift
	}
	d := float64(base) * math.Pow(e.factor, float64(max(retry, 1)-1))
	if math.IsNaN(d) || d >= float64(longest) {
		return longest
	}
	return time.Duration(d)
}

// from is the base from which the delays grow.
func (e exponential) from(original time.Duration) time.Duration {
	if e.fromOriginal && original > 0 {
		return original
	}
	return max(0, e.base)
}

func (e exponential) String() string {
	if e.fromOriginal {
		return fmt.Sprintf("original delay (or %s) x%g for each retry", e.base, e.factor)
	}
	return fmt.Sprintf("%s x%g for each retry", e.base, e.factor)
}

func (e exponential) validate() error {
	var errs []error
	if e.base < 0 {
		errs = append(errs, fmt.Errorf("exponential backoff from %s: a delay cannot be negative", e.base))
	}
	if !(e.factor >= 1) || math.IsInf(e.factor, 1) {
		errs = append(errs, fmt.Errorf("exponential backoff with factor %g: the factor must be a number of at least 1",
			e.factor))
	}
	return errors.Join(errs...)
}

// WithCap limits the delays of b.
func WithCap(b Backoff, limit time.Duration) Backoff { return capped{b, limit} }

type capped struct {
	backoff Backoff
	limit   time.Duration
}

// Delay implements [Backoff].
func (c capped) Delay(retry int, original time.Duration) time.Duration {
	return max(0, min(c.backoff.Delay(retry, original), c.limit))
}

func (c capped) String() string { return fmt.Sprintf("%v, at most %s", c.backoff, c.limit) }

func (c capped) validate() error {
	var errs []error
	if c.limit <= 0 {
		errs = append(errs, fmt.Errorf("backoff capped at %s: the cap must be positive", c.limit))
	}
	return errors.Join(append(errs, validateBackoff(c.backoff))...)
}

func validateBackoff(b Backoff) error {
	if b == nil || isTypedNil(b) {
		return errors.New("backoff is nil")
	}
	if b, ok := b.(validator); ok {
		return b.validate()
	}
	return nil
}

// Timeline returns when the attempts of a message that always fails run, relative to the first attempt, which is always
// at 0: the output of "explain" and the value that tests compare. maxAttempts counts runs including the first.
func Timeline(b Backoff, maxAttempts int, original time.Duration) []time.Duration {
	times := make([]time.Duration, 0, max(maxAttempts, 0))
	var at time.Duration
	for attempt := 1; attempt <= maxAttempts; attempt++ {
		if attempt > 1 {
			d := b.Delay(attempt-1, original)
			if at > longest-d {
				at = longest
			} else {
				at += d
			}
		}
		times = append(times, at)
	}
	return times
}

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
	return jittered{b, j}
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
}

// Delay implements [Backoff].
func (j jittered) Delay(retry int, original time.Duration) time.Duration {
	d := max(0, j.backoff.Delay(retry, original))
	switch j.kind {
	case FullJitter:
		return between(0, d)
	case EqualJitter:
		return between(d/2, d)
	default:
		return d
	}
}

// between draws from [low, high).
func between(low, high time.Duration) time.Duration {
	return low + rand.N(max(1, high-low)) //nolint:gosec // spreading load is not a secret
}

func (j jittered) String() string { return fmt.Sprintf("%v, %v", j.backoff, j.kind) }

func (j jittered) validate() error {
	var errs []error
	if j.kind != FullJitter && j.kind != EqualJitter {
		errs = append(errs, fmt.Errorf("unknown jitter %d: use FullJitter or EqualJitter", int(j.kind)))
	}
	return errors.Join(append(errs, validateBackoff(j.backoff))...)
}
