package pipelinemetrics

import (
	"cmp"
	"maps"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/redrive-go/redrive/middleware"
)

// busMetrics are the metrics under the names of the PHP service bus. They violate Prometheus' conventions on purpose,
// because its dashboards and alerts use these names.
type busMetrics struct {
	service  string
	started  *prometheus.CounterVec
	payload  *prometheus.HistogramVec
	duration *busTimes
	dead     *prometheus.CounterVec
}

func newBusMetrics(m *Metrics) *busMetrics {
	collected(m, newBusAcks(&m.cfg))
	return &busMetrics{
		service: m.cfg.ServiceBus,
		started: m.counter("event_started_count", "Service bus name: handler runs started. retry is first, retry or last.",
			"nano_service_name", "event_name", "retry"),
		payload: m.histogram(m.cfg.classic("rmq_consumer_payload_bytes",
			"Service bus name: size of the payload of each delivery.", m.cfg.PayloadBuckets), "nano_service_name", "event_name"),
		duration: collected(m, newBusTimes(&m.cfg)),
		dead: m.counter("rmq_consumer_dlx_total",
			"Service bus name: dead letters. reason is max_retries_exceeded if no attempt is left.",
			"nano_service_name", "event_name", "reason"),
	}
}

// busSeries are those of one event.
type busSeries struct {
	of        *busMetrics
	event     string
	started   [len(tags)]prometheus.Counter
	payload   prometheus.Observer
	durations [len(tags)][2]atomic.Pointer[prometheus.Observer]
}

func (b *busMetrics) series(l labels) *busSeries {
	event := cmp.Or(l.event, l.topic)
	s := &busSeries{of: b, event: event, payload: b.payload.WithLabelValues(b.service, event)}
	for i, tag := range tags {
		s.started[i] = b.started.WithLabelValues(b.service, event, string(tag))
	}
	b.dead.WithLabelValues(b.service, event, middleware.ServiceBusExhausted)
	return s
}

func (s *busSeries) begin(e *middleware.Started) {
	s.started[place(e.Attempt.Tag)].Inc()
	s.payload.Observe(float64(e.Payload))
}

func (s *busSeries) end(e *middleware.Finished) {
	if !e.Ran {
		return
	}
	status, failed := "failed", 1
	if e.Outcome == middleware.OutcomeSuccess || e.Outcome == middleware.OutcomeSkip {
		status, failed = "success", 0 // on the bus, a handler that skips returns without an error
	}
	at := place(e.Attempt.Tag)
	slot := &s.durations[at][failed]
	h := slot.Load()
	if h == nil {
		made := s.of.duration.vec.WithLabelValues(s.of.service, s.event, status, string(tags[at]))
		h = &made
		slot.Store(h)
	}
	(*h).Observe(float64(e.Duration.Microseconds()) / 1000)
}

func (s *busSeries) died(e *middleware.DeadLettered) {
	s.of.dead.WithLabelValues(s.of.service, s.event, e.ServiceBusReason()).Inc()
}

// newBusAcks counts what the broker counts: pipelines do not see acks.
func newBusAcks(cfg *Config) prometheus.CounterFunc {
	labels := prometheus.Labels{"nano_service_name": cfg.ServiceBus}
	maps.Copy(labels, cfg.ConstLabels)
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "rmq_consumer_ack_failed_total", ConstLabels: labels,
		Help: "Service bus name: messages redelivered because their acks could not be sent.",
	}, func() float64 {
		if cfg.AcksFailed == nil {
			return 0
		}
		return float64(cfg.AcksFailed())
	})
}

// busTimes exposes a histogram as the counters that the bus's queries read. They count durations by
// event_processed_duration itself and compute quantiles from its buckets; Prometheus' client rejects a histogram next
// to a counter of the same name, so each of the histogram's series is a counter here.
type busTimes struct {
	vec                       *prometheus.HistogramVec
	plain, count, sum, bucket *prometheus.Desc
}

var _ prometheus.Collector = (*busTimes)(nil)

func newBusTimes(cfg *Config) *busTimes {
	ms := make([]float64, len(cfg.DurationBuckets))
	for i, seconds := range cfg.DurationBuckets {
		ms[i] = seconds * 1000
	}
	const name, of = "event_processed_duration", "Service bus name: how long the handler ran, in ms. "
	labels := []string{"nano_service_name", "event_name", "exit_status", "retry"}
	desc := func(suffix, what string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc(name+suffix, of+what, append(labels, more...), cfg.ConstLabels)
	}
	return &busTimes{
		vec:    prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: of + "Runs.", Buckets: ms}, labels),
		plain:  desc("", "Runs."),
		count:  desc("_count", "Runs."),
		sum:    desc("_sum", "The sum."),
		bucket: desc("_bucket", "Runs of at most le.", "le"),
	}
}

// Describe implements prometheus.Collector.
func (b *busTimes) Describe(ch chan<- *prometheus.Desc) {
	ch <- b.plain
	ch <- b.count
	ch <- b.sum
	ch <- b.bucket
}

// Collect implements prometheus.Collector.
func (b *busTimes) Collect(ch chan<- prometheus.Metric) {
	all := make(chan prometheus.Metric)
	go func() {
		defer close(all)
		b.vec.Collect(all)
	}()
	for m := range all {
		var d dto.Metric
		if err := m.Write(&d); err != nil {
			ch <- prometheus.NewInvalidMetric(b.plain, err)
			continue
		}
		by := map[string]string{}
		for _, l := range d.GetLabel() {
			by[l.GetName()] = l.GetValue()
		}
		values := []string{by["nano_service_name"], by["event_name"], by["exit_status"], by["retry"]}
		show := func(desc *prometheus.Desc, value float64, more ...string) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, append(values, more...)...) //nolint:promlinter // described above
		}
		h := d.GetHistogram()
		runs := float64(h.GetSampleCount())
		show(b.plain, runs)
		show(b.count, runs)
		show(b.sum, h.GetSampleSum())
		for _, bucket := range h.GetBucket() {
			show(b.bucket, float64(bucket.GetCumulativeCount()), strconv.FormatFloat(bucket.GetUpperBound(), 'g', -1, 64))
		}
		show(b.bucket, runs, "+Inf")
	}
}
