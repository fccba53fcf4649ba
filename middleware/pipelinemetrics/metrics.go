package pipelinemetrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/labelvalues"
	"github.com/redrive-go/redrive/middleware"
)

// Other replaces the values of a label beyond its limit.
const Other = labelvalues.Other

// DefaultMaxValues is how many values a label that comes from messages may have.
const DefaultMaxValues = 100

// Config specifies what to export. The zero Config is ready for use.
type Config struct {
	// MaxValues is how many values each of the labels topic, handler, event and circuit may have; further values become
	// [Other]. Defaults to [DefaultMaxValues].
	MaxValues int
	// DurationBuckets are the classic buckets of durations, in seconds. Default to 1 ms to 1 min, about two for each
	// doubling.
	DurationBuckets []float64
	// DelayBuckets are the classic buckets of retry delays, in seconds. Default to 100 ms to 1 day.
	DelayBuckets []float64
	// PayloadBuckets are the classic buckets of payload sizes, in bytes. Default to 64 B to 16 MiB.
	PayloadBuckets []float64
	// NativeFactor is the growth factor of native buckets. Defaults to 1.1; a negative one omits native buckets.
	NativeFactor float64
	// ServiceBus, unless empty, is the nano_service_name under which the metrics are also exported with the names of the
	// PHP service bus, which do not follow Prometheus' conventions.
	ServiceBus string
	// AcksFailed returns how many messages were handled but could not be acked, for the bus's
	// rmq_consumer_ack_failed_total: brokermetrics.AcksFailed of the service's broker. Defaults to none, which exports 0.
	AcksFailed func() uint64
	// ConstLabels are added to every metric.
	ConstLabels prometheus.Labels
}

func (c *Config) setDefaults() {
	c.MaxValues = cmp.Or(c.MaxValues, DefaultMaxValues)
	c.NativeFactor = cmp.Or(c.NativeFactor, 1.1)
	if c.DurationBuckets == nil {
		c.DurationBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	}
	if c.DelayBuckets == nil {
		c.DelayBuckets = []float64{.1, .5, 1, 5, 10, 30, 60, 300, 900, 3600, 6 * 3600, 24 * 3600}
	}
	if c.PayloadBuckets == nil {
		c.PayloadBuckets = prometheus.ExponentialBuckets(64, 4, 10)
	}
}

func (c *Config) validate() error {
	var errs []error
	if c.MaxValues < 0 {
		errs = append(errs, fmt.Errorf("MaxValues is %d: it cannot be negative; 0 is the default of %d", c.MaxValues,
			DefaultMaxValues))
	}
	if c.NativeFactor >= 0 && c.NativeFactor <= 1 {
		errs = append(errs, fmt.Errorf("NativeFactor is %v: it must be above 1, or negative for no native buckets",
			c.NativeFactor))
	}
	for name, buckets := range map[string][]float64{
		"DurationBuckets": c.DurationBuckets, "DelayBuckets": c.DelayBuckets, "PayloadBuckets": c.PayloadBuckets,
	} {
		if len(buckets) == 0 || !slices.IsSorted(buckets) || len(slices.Compact(slices.Clone(buckets))) != len(buckets) {
			errs = append(errs, fmt.Errorf("%s must be strictly increasing and not empty", name))
		}
	}
	return errors.Join(errs...)
}

func (c *Config) classic(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, ConstLabels: c.ConstLabels}
}

// native also has native buckets, unless they are switched off.
func (c *Config) native(name, help string, buckets []float64) prometheus.HistogramOpts {
	opts := c.classic(name, help, buckets)
	if c.NativeFactor > 1 {
		opts.NativeHistogramBucketFactor = c.NativeFactor
		opts.NativeHistogramMaxBucketNumber = 160
		opts.NativeHistogramMinResetDuration = time.Hour
	}
	return opts
}

// Metrics counts what pipelines do. Register it with a registry and use it as the observer of any number of pipelines.
// It is safe for concurrent use and needs no Close.
type Metrics struct {
	cfg        Config
	cache      cache
	collectors []prometheus.Collector

	started       *prometheus.CounterVec
	deliveries    *prometheus.CounterVec
	duration      *prometheus.HistogramVec
	payload       *prometheus.HistogramVec
	delay         *prometheus.HistogramVec
	deadLetters   *prometheus.CounterVec
	fallbacks     *prometheus.CounterVec
	publishFailed *prometheus.CounterVec
	circuitState  *prometheus.GaugeVec
	circuitChange *prometheus.CounterVec

	bus *busMetrics // nil unless configured
}

var (
	_ middleware.Observer  = (*Metrics)(nil)
	_ prometheus.Collector = (*Metrics)(nil)
)

// New creates Metrics, or returns an error that names every fault of cfg.
func New(cfg Config) (*Metrics, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("pipelinemetrics: invalid config: %w", err)
	}
	m := &Metrics{cfg: cfg}
	m.started = m.counter("redrive_attempts_started_total", "Handler runs started. The attempt is first, retry or last.",
		"topic", "handler", "event", "attempt")
	m.deliveries = m.counter("redrive_deliveries_total",
		"Deliveries by outcome: success, retry, dead_letter, skip, defer, return (at a shutdown) or not_settled.",
		"topic", "handler", "event", "attempt", "outcome")
	m.duration = m.histogram(cfg.native("redrive_handler_duration_seconds",
		"How long the handler ran. The result is success or failed.", cfg.DurationBuckets), "handler", "attempt", "result")
	m.payload = m.histogram(cfg.classic("redrive_payload_bytes", "Size of the payload of each delivery that was run.",
		cfg.PayloadBuckets), "topic")
	m.delay = m.histogram(cfg.native("redrive_retry_delay_seconds",
		"Delay of the retries and deferrals that the broker has confirmed. The kind is retry or defer.", cfg.DelayBuckets),
		"topic", "handler", "kind")
	m.deadLetters = m.counter("redrive_dead_letters_total", "Durable dead letters, by reason.",
		"topic", "handler", "event", "reason")
	m.fallbacks = m.counter("redrive_dead_letter_fallbacks_total",
		"Dead letters taken by the fallback because their sink failed.", "topic", "handler")
	m.publishFailed = m.counter("redrive_publish_failures_total",
		"Failed attempts to publish a retry, a deferral or a dead letter.", "topic", "handler", "outcome")
	m.circuitState = collected(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "redrive_circuit_state", Help: "State of a circuit that has ever opened: 0 closed, 1 half-open, 2 open.",
		ConstLabels: cfg.ConstLabels,
	}, []string{"circuit"}))
	m.circuitChange = m.counter("redrive_circuit_changes_total", "State changes of a circuit, by the new state.",
		"circuit", "to")
	if cfg.ServiceBus != "" {
		m.bus = newBusMetrics(m)
	}
	m.cache.init(cfg.MaxValues, m.newSeries)
	return m, nil
}

// collected adds a collector to those of m.
func collected[C prometheus.Collector](m *Metrics, c C) C {
	m.collectors = append(m.collectors, c)
	return c
}

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	opts := prometheus.CounterOpts{Name: name, Help: help, ConstLabels: m.cfg.ConstLabels}
	return collected(m, prometheus.NewCounterVec(opts, labels))
}

func (m *Metrics) histogram(opts prometheus.HistogramOpts, labels ...string) *prometheus.HistogramVec {
	return collected(m, prometheus.NewHistogramVec(opts, labels))
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.collectors {
		c.Collect(ch)
	}
}

// Started implements [middleware.Observer].
func (m *Metrics) Started(ctx context.Context, e middleware.Started) context.Context {
	s := m.cache.get(e.Delivery)
	s.started[place(e.Attempt.Tag)].Inc()
	s.payload.Observe(float64(e.Payload))
	if s.bus != nil {
		s.bus.begin(&e)
	}
	return ctx
}

// Finished implements [middleware.Observer].
func (m *Metrics) Finished(_ context.Context, e middleware.Finished) {
	s := m.cache.get(e.Delivery)
	at := place(e.Attempt.Tag)
	s.outcome(at, e.Outcome).Inc()
	if e.Ran {
		s.duration(at, e.Outcome).Observe(e.Duration.Seconds())
	}
	if s.bus != nil {
		s.bus.end(&e)
	}
}

// RetryScheduled implements [middleware.Observer].
func (m *Metrics) RetryScheduled(_ context.Context, e middleware.RetryScheduled) {
	l := m.cache.get(e.Delivery).labels
	m.delay.WithLabelValues(l.topic, l.handler, e.Decision.Outcome.String()).Observe(e.Decision.Delay.Seconds())
}

// DeadLettered implements [middleware.Observer].
func (m *Metrics) DeadLettered(_ context.Context, e middleware.DeadLettered) {
	s := m.cache.get(e.Delivery)
	m.deadLetters.WithLabelValues(s.labels.topic, s.labels.handler, s.labels.event, string(e.DeadLetter.Reason)).Inc()
	if e.Fallback {
		m.fallbacks.WithLabelValues(s.labels.topic, s.labels.handler).Inc()
	}
	if s.bus != nil {
		s.bus.died(&e)
	}
}

// PublishFailed implements [middleware.Observer].
func (m *Metrics) PublishFailed(_ context.Context, e middleware.PublishFailed) {
	l := m.cache.get(e.Delivery).labels
	m.publishFailed.WithLabelValues(l.topic, l.handler, e.Outcome.String()).Inc()
}

// BreakerChanged implements [middleware.Observer].
func (m *Metrics) BreakerChanged(_ context.Context, e middleware.BreakerChanged) {
	circuit := m.cache.circuits.Bound(e.Key)
	m.circuitChange.WithLabelValues(circuit, e.To).Inc()
	if circuit == Other {
		return // the states of several would overwrite each other
	}
	state := map[string]float64{"half-open": 1, "open": 2}[e.To]
	m.circuitState.WithLabelValues(circuit).Set(state)
}

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
