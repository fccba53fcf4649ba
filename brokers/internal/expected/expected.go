// Package expected records what the pipelines of a broker have announced before their consumers subscribe: the waits of
// their retries and the system events that they handle.
package expected

import (
	"slices"
	"sync"
	"time"
)

// Expected is ready for use and safe for concurrent use.
type Expected struct {
	mu     sync.Mutex
	delays []time.Duration
	events []string
}

// Add records the announcements of one pipeline.
func (e *Expected) Add(delays []time.Duration, events []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.delays = union(e.delays, delays)
	e.events = union(e.events, events)
}

// Delays returns the waits, shortest first.
func (e *Expected) Delays() []time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.delays)
}

// Patterns returns patterns and those system events that neither they nor topic include.
func (e *Expected) Patterns(topic string, patterns []string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := slices.Clone(patterns)
	for _, event := range e.events {
		if event != topic && !slices.Contains(all, event) {
			all = append(all, event)
		}
	}
	return all
}

func union[T ~int64 | ~string](have, more []T) []T {
	all := slices.Concat(have, more)
	slices.Sort(all)
	return slices.Compact(all)
}
