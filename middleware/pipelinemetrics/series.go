package pipelinemetrics

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/labelvalues"
	"github.com/redrive-go/redrive/middleware"
)

var tags = [...]middleware.Tag{middleware.TagFirst, middleware.TagRetry, middleware.TagLast}

// place is the tag's index; an unknown tag counts as the first.
func place(t middleware.Tag) int { return max(0, slices.Index(tags[:], t)) }

const outcomes = int(middleware.OutcomeNotSettled) + 1

// series are the metrics of the deliveries with the same labels. Those that most deliveries need are found by index;
// the others are created when they are needed, so that the page has no series that never count.
type series struct {
	metrics *Metrics
	labels  labels
	started [len(tags)]prometheus.Counter
	payload prometheus.Observer
	counts  [len(tags)][outcomes]atomic.Pointer[prometheus.Counter]
	times   [len(tags)][2]atomic.Pointer[prometheus.Observer]
	bus     *busSeries
}

func (m *Metrics) newSeries(l labels) *series {
	s := &series{metrics: m, labels: l, payload: m.payload.WithLabelValues(l.topic)}
	for i, tag := range tags {
		s.started[i] = m.started.WithLabelValues(l.topic, l.handler, l.event, string(tag))
	}
	// Counters that alerts watch begin at 0: the first increase of a counter that begins at 1 goes unnoticed.
	for _, reason := range []envelope.Reason{envelope.ReasonExhausted, envelope.ReasonPermanent} {
		m.deadLetters.WithLabelValues(l.topic, l.handler, l.event, string(reason))
	}
	for _, o := range []middleware.Outcome{
		middleware.OutcomeRetry, middleware.OutcomeDefer,
		middleware.OutcomeDeadLetter,
	} {
		m.publishFailed.WithLabelValues(l.topic, l.handler, o.String())
	}
	m.fallbacks.WithLabelValues(l.topic, l.handler)
	s.outcome(0, middleware.OutcomeNotSettled)
	if m.bus != nil {
		s.bus = m.bus.series(l)
	}
	return s
}

// outcome returns the counter of an outcome.
func (s *series) outcome(tag int, o middleware.Outcome) prometheus.Counter {
	i := int(o)
	if i < 0 || i >= outcomes {
		i = 0
	}
	slot := &s.counts[tag][i]
	if c := slot.Load(); c != nil {
		return *c
	}
	c := s.metrics.deliveries.WithLabelValues(s.labels.topic, s.labels.handler, s.labels.event, string(tags[tag]),
		o.String())
	slot.Store(&c) // a second caller stores the same counter
	return c
}

// duration returns the histogram of the handler's duration.
func (s *series) duration(tag int, o middleware.Outcome) prometheus.Observer {
	result, i := "failed", 1
	if o == middleware.OutcomeSuccess {
		result, i = "success", 0
	}
	slot := &s.times[tag][i]
	if h := slot.Load(); h != nil {
		return *h
	}
	h := s.metrics.duration.WithLabelValues(s.labels.handler, string(tags[tag]), result)
	slot.Store(&h)
	return h
}

// labels are the bounded values that come from a message.
type labels struct{ topic, handler, event string }

// cache finds the series of a delivery without a lock: each new series copies the map, and there are few of them
// because the values of each label are bounded.
type cache struct {
	make func(labels) *series

	topics, handlers, events, circuits *labelvalues.Set

	found atomic.Pointer[map[labels]*series]
	mu    sync.Mutex // for adding
}

func (c *cache) init(limit int, build func(labels) *series) {
	c.make = build
	c.topics, c.handlers = labelvalues.NewSet(limit), labelvalues.NewSet(limit)
	c.events, c.circuits = labelvalues.NewSet(limit), labelvalues.NewSet(limit)
	c.found.Store(&map[labels]*series{})
}

// get returns the series of a delivery.
func (c *cache) get(d *middleware.Delivery) *series {
	raw := labels{d.Origin.Topic, d.Handler, d.Event}
	if s := (*c.found.Load())[raw]; s != nil {
		return s
	}
	return c.bounded(raw)
}

// bounded handles values that have not occurred before, and those beyond the limit.
func (c *cache) bounded(raw labels) *series {
	l := labels{c.topics.Bound(raw.topic), c.handlers.Bound(raw.handler), c.events.Bound(raw.event)}
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
