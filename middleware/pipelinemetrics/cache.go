package pipelinemetrics

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/redrive-go/redrive/middleware"
)

// maxLabel bounds the length of a label's value in bytes.
const maxLabel = 128

// labels are the bounded values that come from a message.
type labels struct{ topic, handler, event string }

// cache finds the series of a delivery without a lock: each new series copies the map, and there are few of them
// because the values of each label are bounded.
type cache struct {
	make func(labels) *series

	topics, handlers, events, circuits values

	found  atomic.Pointer[map[labels]*series]
	recent [64]atomic.Pointer[series] // by slotOf: a lookup here costs a third of one in the map
	mu     sync.Mutex                 // for adding
}

func (c *cache) init(limit int, build func(labels) *series) {
	c.make = build
	for _, v := range []*values{&c.topics, &c.handlers, &c.events, &c.circuits} {
		v.limit = limit
		v.known.Store(&map[string]struct{}{})
	}
	c.found.Store(&map[labels]*series{})
}

// get returns the series of a delivery.
func (c *cache) get(d *middleware.Delivery) *series {
	slot := &c.recent[slotOf(d)%uint(len(c.recent))]
	if s := slot.Load(); s != nil && s.labels.event == d.Event && s.labels.handler == d.Handler &&
		s.labels.topic == d.Origin.Topic {
		return s
	}
	raw := labels{d.Origin.Topic, d.Handler, d.Event}
	if s := (*c.found.Load())[raw]; s != nil {
		slot.Store(s)
		return s
	}
	return c.bounded(raw)
}

// slotOf distinguishes most of a service's few events and handlers, for less than a hash.
func slotOf(d *middleware.Delivery) uint {
	n := uint(len(d.Event)) + 5*uint(len(d.Handler))
	if i := len(d.Event) - 1; i >= 0 {
		n += 7*uint(d.Event[i]) + 13*uint(d.Event[i/2])
	}
	if i := len(d.Handler) - 1; i >= 0 {
		n += 19 * uint(d.Handler[i])
	}
	return n
}

// bounded handles values that have not occurred before, and those beyond the limit.
func (c *cache) bounded(raw labels) *series {
	l := labels{c.topics.bound(raw.topic), c.handlers.bound(raw.handler), c.events.bound(raw.event)}
	if s := (*c.found.Load())[l]; s != nil {
		return s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := (*c.found.Load())[l]; s != nil {
		return s
	}
	s := c.make(l)
	next := maps.Clone(*c.found.Load())
	next[l] = s
	c.found.Store(&next)
	return s
}

// values are the values that a label has had so far.
type values struct {
	limit int
	known atomic.Pointer[map[string]struct{}]
	mu    sync.Mutex // for adding
}

// bound returns the value to use for the label.
func (v *values) bound(value string) string {
	if len(value) > maxLabel {
		value = value[:maxLabel]
	}
	value = strings.ToValidUTF8(value, "\ufffd")
	known := *v.known.Load()
	if _, ok := known[value]; ok {
		return value
	}
	if len(known) >= v.limit { // the set never shrinks: a flood of names takes no lock
		return Other
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	known = *v.known.Load()
	if _, ok := known[value]; ok {
		return value
	}
	if len(known) >= v.limit {
		return Other
	}
	next := maps.Clone(known)
	next[strings.Clone(value)] = struct{}{} // not a substring that would keep a longer text alive
	v.known.Store(&next)
	return value
}
