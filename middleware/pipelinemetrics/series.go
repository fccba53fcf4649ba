package pipelinemetrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

var tags = [...]middleware.Tag{middleware.TagFirst, middleware.TagRetry, middleware.TagLast}

// place is the tag's index.
func place(t middleware.Tag) int {
	switch t {
	case middleware.TagRetry:
		return 1
	case middleware.TagLast:
		return 2
	default:
		return 0
	}
}

const outcomes = int(middleware.OutcomeNotSettled) + 1

// series are the metrics of the deliveries with the same labels. Those that most deliveries need are found by index;
// the others are created when they are needed, so that the page has no series that never count.
type series struct {
	metrics *Metrics
	labels  labels
	started [len(tags)]prometheus.Counter
	payload *sizeSeries
	counts  [len(tags)][outcomes]atomic.Pointer[prometheus.Counter]
	times   [len(tags)][2]atomic.Pointer[prometheus.Observer]
	bus     *busSeries
}

func (m *Metrics) newSeries(l labels) *series {
	s := &series{metrics: m, labels: l, payload: m.payload.with(l.topic)}
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
