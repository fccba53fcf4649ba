package access

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limiter limits the rate of each of many names. It is safe for concurrent use.
type Limiter struct {
	every rate.Limit
	burst int

	mu      sync.Mutex
	buckets map[string]*bucket
	swept   time.Time
}

type bucket struct {
	limiter *rate.Limiter
	// begun are the attempts in flight; ended is closed, and replaced, when one ends.
	begun int
	ended chan struct{}
}

// maxBegun is how many attempts of one name are in flight: one caller's must not occupy what all of them wait for.
const maxBegun = 4

// maxBuckets limits the memory. Beyond it, idle buckets are forgotten; if none is idle, the remaining names share one.
const maxBuckets = 10_000

// NewLimiter makes a Limiter. A rate of 0 or less allows everything.
func NewLimiter(perSecond float64, burst int) *Limiter {
	if perSecond <= 0 {
		return nil
	}
	return &Limiter{every: rate.Limit(perSecond), burst: burst, buckets: map[string]*bucket{}}
}

// Allow takes one from name's allowance, or returns how long to wait. A nil Limiter allows everything.
func (l *Limiter) Allow(name string) (wait time.Duration, ok bool) {
	if l == nil {
		return 0, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	b := l.bucket(name, now)
	// Not a reservation: if others are made meanwhile, its cancellation returns less than it took.
	if b.limiter.AllowN(now, 1) {
		return 0, true
	}
	return l.wait(b, now), false
}

// Begin begins an attempt, which takes one from name's allowance only if it turns out to be wrong, as the caller tells
// end. What is in flight may be correct, so an attempt for which it might leave nothing waits for one of them to end.
// The error is a *slowed if nothing is left.
func (l *Limiter) Begin(ctx context.Context, name string) (end func(wrong bool), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		now := time.Now()
		b := l.bucket(name, now)
		left := int(b.limiter.TokensAt(now))
		if left < 1 {
			return nil, &slowed{l.wait(b, now)}
		}
		if b.begun < min(left, maxBegun) {
			b.begun++
			return func(wrong bool) {
				l.mu.Lock()
				defer l.mu.Unlock()
				if wrong {
					b.limiter.Allow()
				}
				b.begun--
				close(b.ended)
				b.ended = make(chan struct{})
			}, nil
		}
		ended := b.ended
		l.mu.Unlock()
		select {
		case <-ended:
		case <-ctx.Done():
			err = &unchecked{ctx.Err()}
		}
		if l.mu.Lock(); err != nil {
			return nil, err
		}
	}
}

// wait is how long a bucket will be empty.
func (l *Limiter) wait(b *bucket, now time.Time) time.Duration {
	return time.Duration((1 - b.limiter.TokensAt(now)) / float64(l.every) * float64(time.Second))
}

// Spent reports whether name has nothing left, and takes nothing.
func (l *Limiter) Spent(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	return l.bucket(name, now).limiter.TokensAt(now) < 1
}

// bucket is name's; the caller has locked.
func (l *Limiter) bucket(name string, now time.Time) *bucket {
	b := l.buckets[name]
	if b == nil && len(l.buckets) >= maxBuckets {
		if l.sweep(now); len(l.buckets) >= maxBuckets {
			name = ""
			b = l.buckets[name]
		}
	}
	if b == nil {
		b = &bucket{limiter: rate.NewLimiter(l.every, l.burst), ended: make(chan struct{})}
		l.buckets[name] = b
	}
	return b
}

// sweep forgets those that are full again, at most once per second.
func (l *Limiter) sweep(now time.Time) {
	if now.Sub(l.swept) < time.Second {
		return
	}
	l.swept = now
	for name, b := range l.buckets {
		if b.begun == 0 && b.limiter.TokensAt(now) >= float64(l.burst) {
			delete(l.buckets, name)
		}
	}
}
