package dashboard

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/redrive-go/redrive/dlq/internal/guarded"
)

// cache keeps what refreshing pages show for an interval, and loads it only once at a time, for any number of viewers.
type cache struct {
	interval time.Duration
	now      func() time.Time
	flights  singleflight.Group

	mu         sync.Mutex
	generation int
	kept       map[string]kept
}

// kept is a loaded value, and when loading began.
type kept struct {
	value any
	err   error
	at    time.Time
}

const (
	// loadTimeout limits a call of the store. It belongs to no single request, so it does not end with one.
	loadTimeout = 20 * time.Second
	// errorInterval is how long an error is kept, so that not every viewer calls a store that is down.
	errorInterval = time.Second
	// maxKept is the maximum number of kept values: a crawler may visit any number of pages.
	maxKept = 256
)

func newCache(interval time.Duration) *cache {
	return &cache{interval: interval, now: time.Now, kept: map[string]kept{}}
}

// forget drops everything, after a change. A load that began before is not kept.
func (c *cache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	clear(c.kept)
}

// lookup returns the value of a key unless it is too old, and the generation.
func (c *cache) lookup(key string) (k kept, generation int, fresh bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, there := c.kept[key]
	limit := c.interval
	if k.err != nil {
		limit = min(limit, errorInterval)
	}
	return k, c.generation, there && c.now().Sub(k.at) < limit
}

func (c *cache) keep(key string, generation int, k kept) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if generation != c.generation {
		return
	}
	if len(c.kept) >= maxKept {
		for other, o := range c.kept {
			if c.now().Sub(o.at) >= c.interval {
				delete(c.kept, other)
			}
		}
	}
	if len(c.kept) < maxKept {
		c.kept[key] = k
	}
}

// cachedPair is cached for two values.
func cachedPair[A, B any](ctx context.Context, c *cache, key string, load func(context.Context) (A, B, error)) (
	a A, b B, at time.Time, err error,
) {
	type pair struct {
		a A
		b B
	}
	found, at, err := cached(ctx, c, key, func(ctx context.Context) (p pair, err error) {
		p.a, p.b, err = load(ctx)
		return p, err
	})
	return found.a, found.b, at, err
}

// cached returns what load returned less than an interval ago, or what it returns now, and when that was. Callers share
// the value and must not change it.
func cached[T any](ctx context.Context, c *cache, key string, load func(context.Context) (T, error)) (T, time.Time,
	error,
) {
	k, generation, fresh := c.lookup(key)
	if !fresh {
		flight := fmt.Sprint(generation, " ", key)
		result := c.flights.DoChan(flight, func() (any, error) {
			if k, _, fresh := c.lookup(key); fresh { // loaded while we waited
				return k, nil
			}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
			defer cancel()
			k := kept{at: c.now()}
			k.err = guarded.Call(func() (err error) { k.value, err = load(ctx); return err })
			c.keep(key, generation, k)
			return k, nil
		})
		select {
		case r := <-result:
			k, _ = r.Val.(kept)
		case <-ctx.Done():
			var none T
			return none, time.Time{}, ctx.Err()
		}
	}
	value, _ := k.value.(T)
	return value, k.at, k.err
}
