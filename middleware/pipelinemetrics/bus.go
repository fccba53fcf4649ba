package pipelinemetrics

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// busMetrics are the metrics in the names of the PHP service bus (D27-D31). They break with Prometheus' conventions on purpose:
// the names are what its dashboards and alerts ask for.
type busMetrics struct {
	service   string
	started   *prometheus.CounterVec
	payload   *sizes
	duration  *prometheus.HistogramVec
	ackFailed *prometheus.CounterVec
	dead      *prometheus.CounterVec
}

func newBusMetrics(cfg *Config) *busMetrics {
	ms := make([]float64, len(cfg.DurationBuckets))
	for i, seconds := range cfg.DurationBuckets {
		ms[i] = seconds * 1000
	}
	return &busMetrics{
		service: cfg.ServiceBus,
		started: prometheus.NewCounterVec(cfg.counter("event_started_count",
			"Service bus name: runs of a handler that were begun. retry is first, retry or last."),
			[]string{"nano_service_name", "event_name", "retry"}),
		payload: newSizes(cfg.classic("rmq_consumer_payload_bytes",
			"Service bus name: size of the payload of each delivery.", cfg.PayloadBuckets), "nano_service_name", "event_name"),
		duration: prometheus.NewHistogramVec(cfg.histogram("event_processed_duration",
			"Service bus name: how long the handler ran, in milliseconds. exit_status is success or failed.", ms),
			[]string{"nano_service_name", "event_name", "exit_status", "retry"}),
		ackFailed: prometheus.NewCounterVec(cfg.counter("rmq_consumer_ack_failed_total",
			"Service bus name: deliveries that were nacked, because neither their retry nor their dead letter could be published."),
			[]string{"nano_service_name", "event_name"}),
		dead: prometheus.NewCounterVec(cfg.counter("rmq_consumer_dlx_total",
			"Service bus name: dead letters. reason is max_retries_exceeded, permanent, malformed, expired or panic."),
			[]string{"nano_service_name", "event_name", "reason"}),
	}
}

// busSeries are those of one event.
type busSeries struct {
	of        *busMetrics
	event     string
	started   [len(tags)]prometheus.Counter
	payload   *sizeSeries
	durations [len(tags)][2]atomic.Pointer[prometheus.Observer]
	ackFailed prometheus.Counter
}

func (b *busMetrics) series(l labels) *busSeries {
	event := l.event
	if event == "" {
		event = l.topic
	}
	s := &busSeries{of: b, event: event, payload: b.payload.with(b.service, event), ackFailed: b.ackFailed.WithLabelValues(b.service, event)}
	for i, tag := range tags {
		s.started[i] = b.started.WithLabelValues(b.service, event, string(tag))
	}
	b.dead.WithLabelValues(b.service, event, busReason(envelope.ReasonExhausted))
	return s
}

func (s *busSeries) begin(e *middleware.Started) {
	s.started[place(e.Attempt.Tag)].Inc()
	s.payload.observe(e.Payload)
}

func (s *busSeries) end(e *middleware.Finished) {
	if e.Outcome == middleware.OutcomeNotSettled {
		s.ackFailed.Inc()
	}
	if !e.Ran {
		return
	}
	status, failed := "failed", 1
	if e.Outcome == middleware.OutcomeSuccess || e.Outcome == middleware.OutcomeSkip {
		status, failed = "success", 0 // there, a handler that skips returns without an error
	}
	at := place(e.Attempt.Tag)
	slot := &s.durations[at][failed]
	h := slot.Load()
	if h == nil {
		made := s.of.duration.WithLabelValues(s.of.service, s.event, status, string(tags[at]))
		h = &made
		slot.Store(h)
	}
	(*h).Observe(float64(e.Duration.Microseconds()) / 1000)
}

func (s *busSeries) died(r envelope.Reason) {
	s.of.dead.WithLabelValues(s.of.service, s.event, busReason(r)).Inc()
}

func busReason(r envelope.Reason) string {
	if r == envelope.ReasonExhausted {
		return "max_retries_exceeded"
	}
	return string(r)
}
