package dashboard

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// cache keeps what pages that refresh show, for an interval, and asks for it once at a time, however many ask.
type cache struct {
	interval time.Duration
	now      func() time.Time
	flights  singleflight.Group

	mu         sync.Mutex
	generation int
	kept       map[string]kept
}

// kept is an answer, and when it was requested.
type kept struct {
	value any
	err   error
	at    time.Time
}

const (
	// loadTimeout bounds a question to the store. It belongs to no single request, so it does not end with one.
	loadTimeout = 20 * time.Second
	// errorInterval is how long an error is kept, so that a store that is down is not asked by every viewer.
	errorInterval = time.Second
	// maxKept bounds how many answers are kept: a crawler may walk through any number of pages.
	maxKept = 256
)

func newCache(interval time.Duration) *cache {
	return &cache{interval: interval, now: time.Now, kept: map[string]kept{}}
}

// forget drops everything: something was changed. What is being loaded was requested before and is not kept.
func (c *cache) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	clear(c.kept)
}

// lookup returns what is kept under a key and not too old, and the generation.
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

// cached returns what load returned less than an interval ago, or what it returns now, and when that was. Callers share
// the value and must not change it.
func cached[T any](ctx context.Context, c *cache, key string, load func(context.Context) (T, error)) (T, time.Time,
	error,
) {
	k, generation, fresh := c.lookup(key)
	if !fresh {
		flight := fmt.Sprint(generation, " ", key)
		result := c.flights.DoChan(flight, func() (any, error) {
			if k, _, fresh := c.lookup(key); fresh { // it came between our look and our turn
				return k, nil
			}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), loadTimeout)
			defer cancel()
			k := kept{at: c.now()}
			k.value, k.err = load(ctx)
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
