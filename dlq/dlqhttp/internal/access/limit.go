package access

import (
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
	used    time.Time
}

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
	now := time.Now()
	reservation := l.bucket(name, now).ReserveN(now, 1)
	if wait = reservation.DelayFrom(now); wait > 0 {
		reservation.CancelAt(now)
		return wait, false
	}
	return 0, true
}

// Return gives one back to name's allowance, for what turned out not to count.
func (l *Limiter) Return(name string) {
	now := time.Now()
	l.bucket(name, now).ReserveN(now, -1) // never above the burst
}

// Spent reports whether name has nothing left, and takes nothing.
func (l *Limiter) Spent(name string) bool {
	if l == nil {
		return false
	}
	now := time.Now()
	return l.bucket(name, now).TokensAt(now) < 1
}

func (l *Limiter) bucket(name string, now time.Time) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[name]
	if b == nil && len(l.buckets) >= maxBuckets {
		if l.sweep(now); len(l.buckets) >= maxBuckets {
			name = ""
			b = l.buckets[name]
		}
	}
	if b == nil {
		b = &bucket{limiter: rate.NewLimiter(l.every, l.burst)}
		l.buckets[name] = b
	}
	b.used = now
	return b.limiter
}

// sweep forgets those that are full again, at most once per second.
func (l *Limiter) sweep(now time.Time) {
	if now.Sub(l.swept) < time.Second {
		return
	}
	l.swept = now
	for name, b := range l.buckets {
		if b.limiter.TokensAt(now) >= float64(l.burst) {
			delete(l.buckets, name)
		}
	}
}
