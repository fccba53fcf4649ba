package dlqmetrics

import (
	"cmp"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/internal/labelvalues"
)

// Other is the topic, and the reason, for the sum of those beyond the limit.
const Other = labelvalues.Other

// maxReasons limits the values of the label reason: there are far fewer reasons, but a header can contain any text.
const maxReasons = 32

// Config configures [Metrics]. The zero Config is ready for use.
type Config struct {
	// MaxTopics is how many topics have their own series: those with the most entries. Defaults to 100.
	MaxTopics int
	// Refresh is the maximum age of a reading of the store. Defaults to 15 s.
	Refresh time.Duration
	// Timeout limits the queries of the store. Defaults to 5 s, which is within the timeout of a scrape.
	Timeout time.Duration
	// ResolutionBuckets are the classic buckets of the time from the first death to RESOLVED, in seconds. Default to 1
	// s to 30 days.
	ResolutionBuckets []float64
	// LegacyNames also exports dlq_events_total and dlq_resolution_time_seconds.
	LegacyNames bool
	// ConstLabels are added to every metric: for example a store's name, if there are several.
	ConstLabels prometheus.Labels
}

// Sources are the components to watch. A nil one has no metrics.
type Sources struct {
	// Letters are the store and the spool.
	Letters *dlq.Letters
	// Store is for a program that only has a store. Defaults to that of Letters.
	Store dlq.Store
	// Collector is the collector that feeds the store.
	Collector *collector.Collector
}

// Metrics is a prometheus.Collector and the dlq.Observer of what it watches. It is safe for concurrent use and need not
// be closed: after the Letters are closed, their store is shown as down.
type Metrics struct {
	cfg   Config
	descs descs

	stored           *prometheus.CounterVec
	changes          *prometheus.CounterVec
	redrives         *prometheus.CounterVec
	resolution       *prometheus.HistogramVec
	storeErrors      *prometheus.CounterVec
	legacyResolution prometheus.Histogram // nil unless configured
	topics, reasons  *labelvalues.Set

	mu      sync.Mutex // guards the fields below; held while the store is read, so that concurrent scrapes read it once
	sources Sources
	readAt  time.Time
	reading reading
}

var (
	_ dlq.Observer         = (*Metrics)(nil)
	_ redrive.Observer     = (*Metrics)(nil)
	_ prometheus.Collector = (*Metrics)(nil)
)

// New makes Metrics. The error reports every fault of cfg.
func New(cfg Config) (*Metrics, error) {
	cfg.MaxTopics = cmp.Or(cfg.MaxTopics, 100)
	cfg.Refresh, cfg.Timeout = cmp.Or(cfg.Refresh, 15*time.Second), cmp.Or(cfg.Timeout, 5*time.Second)
	if cfg.ResolutionBuckets == nil {
		cfg.ResolutionBuckets = []float64{
			1, 10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 86400, 3 * 86400, 7 * 86400, 30 * 86400,
		}
	}
	if cfg.MaxTopics < 0 || cfg.Refresh < 0 || cfg.Timeout < 0 {
		return nil, errors.New("dlqmetrics: config: MaxTopics, Refresh and Timeout must not be negative")
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: cfg.ConstLabels}, labels)
	}
	histogram := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{
			Name: name, Help: help, ConstLabels: cfg.ConstLabels, Buckets: cfg.ResolutionBuckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
		}
	}
	m := &Metrics{
		cfg:   cfg,
		descs: newDescs(&cfg),
		stored: counter("redrive_dlq_stored_total",
			"Dead letters that this process has given to the store: stored for a new entry, seen for one reported before, "+
				"died_again for a redriven one.",
			"topic", "reason", "outcome"),
		changes: counter("redrive_dlq_changes_total",
			"Changes of entries by this process: redrive, published, release, succeed, resolve, discard, park, restore.",
			"action"),
		redrives: counter("redrive_dlq_redrives_total",
			"Redriven messages by what this process knows of them: published, refused by the broker, succeeded, failed (died "+
				"again).", "outcome"),
		resolution: prometheus.NewHistogramVec(histogram("redrive_dlq_resolution_duration_seconds",
			"Time from the first death to RESOLVED, of entries that this process has resolved: by redrive or by operator."),
			[]string{"by"}),
		storeErrors: counter("redrive_dlq_store_errors_total",
			"Calls that the store did not answer: put, change, step (of a run) or stats.", "op"),
		topics:  labelvalues.NewSet(cfg.MaxTopics),
		reasons: labelvalues.NewSet(maxReasons),
	}
	for _, outcome := range []string{"published", "refused", "succeeded", "failed"} {
		m.redrives.WithLabelValues(outcome)
	}
	for _, op := range []string{"put", "change", "step", "stats"} {
		m.storeErrors.WithLabelValues(op)
	}
	if cfg.LegacyNames {
		m.legacyResolution = prometheus.NewHistogram(histogram("dlq_resolution_time_seconds",
			"Older name of redrive_dlq_resolution_duration_seconds, over all ways."))
	}
	return m, nil
}

// Watch sets the sources to watch, replacing the earlier ones.
func (m *Metrics) Watch(s Sources) {
	if s.Store == nil && s.Letters != nil {
		s.Store = s.Letters.Store()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sources, m.readAt = s, time.Time{}
}

func (m *Metrics) collectors() []prometheus.Collector {
	all := []prometheus.Collector{m.stored, m.changes, m.redrives, m.resolution, m.storeErrors}
	if m.legacyResolution != nil {
		all = append(all, m.legacyResolution)
	}
	return all
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(ch)
	}
	for _, desc := range m.descs.all {
		ch <- desc
	}
}

// Collect implements prometheus.Collector. It may read the store.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sources.Store != nil {
		m.refresh()
		m.collectStore(ch)
	}
	if m.sources.Letters != nil {
		if s := m.sources.Letters.Stats(); s.MaxBytes > 0 { // it has a spool
			m.collectSpool(ch, s)
		}
	}
	if m.sources.Collector != nil {
		m.collectSources(ch, m.sources.Collector.Stats())
	}
	for _, c := range m.collectors() {
		c.Collect(ch)
	}
}

// descs are the gauges, which are made for each scrape.
type descs struct {
	storeUp, entries, oldest, topicOldest, runs, runEntries, legacy *prometheus.Desc
	spoolBytes, spoolLimit, spoolOldest, spoolRecords, spoolActive  *prometheus.Desc
	subscribed, failing, held, collected, givenBack, lastCollected  *prometheus.Desc

	all []*prometheus.Desc
}

func newDescs(cfg *Config) descs {
	var all []*prometheus.Desc
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		all = append(all, prometheus.NewDesc(name, help, variable, cfg.ConstLabels))
		return all[len(all)-1]
	}
	d := descs{
		storeUp: desc("redrive_dlq_store_up", "1 if the store has answered the last query for its statistics, else 0."),
		entries: desc("redrive_dlq_entries", "Dead letters in the store, by status.", "topic", "status"),
		oldest: desc("redrive_dlq_oldest_pending_age_seconds",
			"Age of the PENDING entry that waits longest; 0 when none does."),
		topicOldest: desc("redrive_dlq_topic_oldest_pending_age_seconds",
			"Age of the PENDING entry of a topic that waits longest; 0 when none of the topic does.", "topic"),
		runs: desc("redrive_dlq_runs", "Redrive runs that have not ended, by state.", "state"),
		runEntries: desc("redrive_dlq_run_entries",
			"Entries of the redrive runs that have not ended, by what happened to them.", "state"),

		spoolBytes: desc("redrive_dlq_spool_bytes", "Bytes that wait in the spool of this process for the store."),
		spoolLimit: desc("redrive_dlq_spool_limit_bytes", "Bytes that the spool may take."),
		spoolOldest: desc("redrive_dlq_spool_oldest_age_seconds",
			"Time since the oldest waiting file was begun; 0 when none waits."),
		spoolRecords: desc("redrive_dlq_spool_records_total",
			"Records of the spool: appended, imported into the store, damaged, refused by the store; torn ends of files, "+
				"and files that are missing.", "result"),
		spoolActive: desc("redrive_dlq_spool_active",
			"1 while the store does not answer and dead letters go to the spool, else 0."),

		subscribed: desc("redrive_collector_subscribed", "1 while messages of the source can arrive, else 0.", "broker",
			"source"),
		failing: desc("redrive_collector_failing", "1 while something is wrong with the source, else 0.", "broker",
			"source"),
		held: desc("redrive_collector_held", "Messages of the source that wait for the store.", "broker", "source"),
		collected: desc("redrive_collector_collected_total", "Messages of the source that were stored and acked.",
			"broker", "source"),
		givenBack: desc("redrive_collector_given_back_total",
			"Messages of the source that the store did not take in time.", "broker", "source"),
		lastCollected: desc("redrive_collector_last_collected_timestamp_seconds",
			"When the last message of the source was stored; 0 for never.", "broker", "source"),
	}
	if cfg.LegacyNames {
		d.legacy = desc("dlq_events_total", "Older name: dead letters that are pending (not closed), resolved and "+
			"discarded. A gauge.", "status")
	}
	d.all = all
	return d
}

// Put implements dlq.Observer.
func (m *Metrics) Put(letters []*dlq.Entry, receipts []driver.Receipt) {
	for i, r := range receipts {
		e := letters[i]
		m.stored.WithLabelValues(m.topics.Bound(e.Origin.Topic), m.reasons.Bound(string(e.Reason)),
			strings.ReplaceAll(string(r.Result), " ", "_")).Inc()
		if r.Result == driver.DiedAgain && e.RedriveOf != 0 {
			m.redrives.WithLabelValues("failed").Inc()
		}
	}
}

// Changed implements dlq.Observer.
func (m *Metrics) Changed(c driver.Change, results []driver.Result) {
	done := 0.
	for i := range results {
		if results[i].Err != nil {
			continue
		}
		done++
		if e := &results[i].Entry; e.Status == dlq.Resolved {
			by := "operator"
			if c.Action == driver.ActionSucceed {
				by = "redrive"
			}
			took := max(0, e.ResolvedAt.Sub(e.CreatedAt).Seconds()) // the times may be of two clocks
			m.resolution.WithLabelValues(by).Observe(took)
			if m.legacyResolution != nil {
				m.legacyResolution.Observe(took)
			}
		}
	}
	if done > 0 {
		m.changes.WithLabelValues(string(c.Action)).Add(done)
	}
	switch c.Action {
	case driver.ActionPublished: // the broker has confirmed them, even if the outcome was faster than this record
		m.redrives.WithLabelValues("published").Add(float64(len(results)))
	case driver.ActionRelease:
		m.redrives.WithLabelValues("refused").Add(done)
	case driver.ActionSucceed:
		m.redrives.WithLabelValues("succeeded").Add(done)
	default:
	}
}

// Stepped implements redrive.Observer.
func (m *Metrics) Stepped(s redrive.Step, done redrive.Stepped) {
	m.redrives.WithLabelValues("published").Add(float64(len(s.Published)))
	for action, results := range done.Changed {
		m.Changed(driver.Change{Action: action}, results)
	}
}

// Failed implements dlq.Observer.
func (m *Metrics) Failed(op string, _ error) { m.storeErrors.WithLabelValues(op).Inc() }
