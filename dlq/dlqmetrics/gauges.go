package dlqmetrics

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/labelvalues"
)

// reading is the result of reading the store.
type reading struct {
	ok    bool
	stats driver.Stats
	// oldest has when the longest waiting entry of each topic with its own series was created.
	oldest map[string]time.Time
	runs   map[redrive.State]int
	items  redrive.Counts
}

// refresh reads the store when the last reading is too old.
func (m *Metrics) refresh() {
	if !m.readAt.IsZero() && time.Since(m.readAt) < m.cfg.Refresh {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.Timeout)
	defer cancel()
	var err error
	m.reading, err = read(ctx, m.sources.Store, m.cfg.MaxTopics)
	m.readAt = time.Now()
	if err != nil {
		m.reading = reading{}
		m.storeErrors.WithLabelValues("stats").Inc()
	}
}

func read(ctx context.Context, store dlq.Store, topics int) (reading, error) {
	r := reading{ok: true, oldest: map[string]time.Time{}, runs: map[redrive.State]int{}}
	now := driver.Now(ctx, store)
	var err error
	if r.stats, err = store.Stats(ctx, dlq.StatsQuery{Now: now, Since: now, TopCauses: 1}); err != nil {
		return r, err
	}
	for i := range r.stats.ByTopic[:min(topics, len(r.stats.ByTopic))] {
		topic := &r.stats.ByTopic[i]
		if topic.Counts.Pending == 0 || topic.Name == "" {
			continue
		}
		first, err := store.List(ctx, dlq.Filter{Topic: topic.Name, Statuses: []dlq.Status{dlq.Pending}},
			dlq.Page{Limit: 1, Order: driver.OldestFirst})
		if err != nil {
			return r, err
		}
		if len(first.Entries) > 0 {
			r.oldest[topic.Name] = first.Entries[0].CreatedAt
		}
	}
	keeper, ok := driver.As[redrive.Store](store)
	if !ok {
		return r, nil
	}
	var open []redrive.State
	for _, state := range redrive.States() {
		if !state.Ended() {
			open = append(open, state)
		}
	}
	for page := (dlq.Page{Limit: driver.MaxPage}); ; {
		runs, next, err := keeper.Runs(ctx, redrive.RunFilter{States: open}, page)
		if err != nil {
			return r, err
		}
		for i := range runs {
			r.runs[runs[i].State]++
			for _, state := range redrive.ItemStates() {
				r.items.Add(state, runs[i].Counts.Of(state))
			}
		}
		if next == "" {
			return r, nil
		}
		page.After = next
	}
}

func gauge(ch chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...) //nolint:promlinter // a test lints what is gathered
}

func counter(ch chan<- prometheus.Metric, desc *prometheus.Desc, value int64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...) //nolint:promlinter // as above
}

func flag(set bool) float64 {
	if set {
		return 1
	}
	return 0
}

// age is how long ago a time was; 0 for never.
func age(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return max(0, time.Since(at).Seconds())
}

// collectStore exports no numbers of a store that does not respond, because old ones would look current.
func (m *Metrics) collectStore(ch chan<- prometheus.Metric) {
	r, d := &m.reading, &m.descs
	gauge(ch, d.storeUp, flag(r.ok))
	if !r.ok {
		return
	}
	byTopic := r.stats.ByTopic
	if len(byTopic) > m.cfg.MaxTopics {
		rest := wire.NamedCounts{Name: Other}
		for _, n := range byTopic[m.cfg.MaxTopics:] {
			rest.Counts = rest.Counts.Plus(n.Counts)
		}
		byTopic = append(byTopic[:m.cfg.MaxTopics:m.cfg.MaxTopics], rest)
	}
	seen := map[string]bool{}
	for _, n := range byTopic {
		topic := labelvalues.Clean(n.Name)
		if seen[topic] {
			continue // two names that are the same as labels
		}
		seen[topic] = true
		for _, status := range wire.Statuses() {
			gauge(ch, d.entries, float64(n.Counts.Of(status)), topic, strings.ToLower(string(status)))
		}
	}
	m.collectOldest(ch)
	for _, state := range redrive.States() {
		if !state.Ended() {
			gauge(ch, d.runs, float64(r.runs[state]), string(state))
		}
	}
	for _, state := range redrive.ItemStates() {
		gauge(ch, d.runEntries, float64(r.items.Of(state)), string(state))
	}
	if m.cfg.LegacyNames {
		c := r.stats.Counts
		gauge(ch, d.legacy, float64(c.Pending+c.Retrying+c.Parked), "pending")
		gauge(ch, d.legacy, float64(c.Resolved), "resolved")
		gauge(ch, d.legacy, float64(c.Discarded), "discarded")
	}
}

// collectOldest exports the age of the longest waiting entry of all and of each topic, and that of the other topics if
// it is the oldest of all.
func (m *Metrics) collectOldest(ch chan<- prometheus.Metric) {
	stats, d := &m.reading.stats, &m.descs
	gauge(ch, d.oldest, age(stats.OldestPending))
	among, seen := false, map[string]bool{}
	for i := range stats.ByTopic[:min(m.cfg.MaxTopics, len(stats.ByTopic))] {
		at := m.reading.oldest[stats.ByTopic[i].Name]
		among = among || !at.IsZero() && !at.After(stats.OldestPending)
		if topic := labelvalues.Clean(stats.ByTopic[i].Name); !seen[topic] {
			seen[topic] = true
			gauge(ch, d.topicOldest, age(at), topic)
		}
	}
	if !among && !stats.OldestPending.IsZero() && !seen[Other] {
		gauge(ch, d.topicOldest, age(stats.OldestPending), Other)
	}
}

func (m *Metrics) collectSpool(ch chan<- prometheus.Metric, s dlq.SpoolStats) {
	d := &m.descs
	gauge(ch, d.spoolBytes, float64(s.Bytes))
	gauge(ch, d.spoolLimit, float64(s.MaxBytes))
	gauge(ch, d.spoolOldest, age(s.OldestSince))
	gauge(ch, d.spoolActive, flag(s.StoreDown))
	counter(ch, d.spoolRecords, s.Appended, "appended")
	counter(ch, d.spoolRecords, s.Imported, "imported")
	counter(ch, d.spoolRecords, s.Damaged, "damaged")
	counter(ch, d.spoolRecords, s.Refused, "refused")
	counter(ch, d.spoolRecords, s.Torn, "torn")
	counter(ch, d.spoolRecords, s.Missing, "missing")
}

func (m *Metrics) collectSources(ch chan<- prometheus.Metric, sources []collector.SourceStats) {
	d := &m.descs
	for i := range sources {
		s := &sources[i]
		labels := []string{labelvalues.Clean(s.Broker), labelvalues.Clean(s.Topic)}
		gauge(ch, d.subscribed, flag(s.Subscribed), labels...)
		gauge(ch, d.failing, flag(s.Err != ""), labels...)
		gauge(ch, d.held, float64(s.Held), labels...)
		counter(ch, d.collected, s.Collected, labels...)
		counter(ch, d.givenBack, s.GivenBack, labels...)
		last := 0.
		if !s.LastCollected.IsZero() {
			last = float64(s.LastCollected.Unix())
		}
		gauge(ch, d.lastCollected, last, labels...)
	}
}
