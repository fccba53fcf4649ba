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
)

// answer is the last reading of the store.
type answer struct {
	ok    bool
	stats driver.Stats
	// oldest are the longest waiting entries of the topics with their own series, if any wait.
	oldest map[string]time.Time
	runs   map[redrive.State]int
	items  redrive.Counts
}

// refresh reads the store when the last reading is too old.
func (m *Metrics) refresh() {
	if !m.asked.IsZero() && time.Since(m.asked) < m.cfg.Refresh {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), m.cfg.Timeout)
	defer cancel()
	var err error
	m.answer, err = ask(ctx, m.sources.Store, m.cfg.MaxTopics)
	m.asked = time.Now()
	if err != nil {
		m.answer = answer{}
		m.storeErrors.WithLabelValues("stats").Inc()
	}
}

func ask(ctx context.Context, store dlq.Store, topics int) (answer, error) {
	a := answer{ok: true, oldest: map[string]time.Time{}, runs: map[redrive.State]int{}}
	now := driver.Now(ctx, store)
	var err error
	if a.stats, err = store.Stats(ctx, dlq.StatsQuery{Now: now, Since: now, TopCauses: 1}); err != nil {
		return a, err
	}
	for i := range a.stats.ByTopic[:min(topics, len(a.stats.ByTopic))] {
		topic := &a.stats.ByTopic[i]
		if topic.Counts.Pending == 0 || topic.Name == "" {
			continue
		}
		first, err := store.List(ctx, dlq.Filter{Topic: topic.Name, Statuses: []dlq.Status{dlq.Pending}},
			dlq.Page{Limit: 1, Order: driver.OldestFirst})
		if err != nil {
			return a, err
		}
		if len(first.Entries) > 0 {
			a.oldest[topic.Name] = first.Entries[0].CreatedAt
		}
	}
	keeper, ok := driver.As[redrive.Store](store)
	if !ok {
		return a, nil
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
			return a, err
		}
		for i := range runs {
			a.runs[runs[i].State]++
			for _, state := range redrive.ItemStates() {
				a.items.Add(state, runs[i].Counts.Of(state))
			}
		}
		if next == "" {
			return a, nil
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

func is(yes bool) float64 {
	if yes {
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

// collectStore shows nothing of a store that does not respond: old numbers would look current.
func (m *Metrics) collectStore(ch chan<- prometheus.Metric) {
	a, d := &m.answer, &m.descs
	gauge(ch, d.storeUp, is(a.ok))
	if !a.ok {
		return
	}
	byTopic := a.stats.ByTopic
	if len(byTopic) > m.cfg.MaxTopics {
		rest := driver.NamedCounts{Name: Other}
		for _, n := range byTopic[m.cfg.MaxTopics:] {
			for _, status := range driver.Statuses() {
				rest.Counts.Add(status, n.Counts.Of(status))
			}
		}
		byTopic = append(byTopic[:m.cfg.MaxTopics:m.cfg.MaxTopics], rest)
	}
	seen := map[string]bool{}
	for _, n := range byTopic {
		topic := label(n.Name)
		if seen[topic] {
			continue // two names that differ only where a label cannot
		}
		seen[topic] = true
		for _, status := range driver.Statuses() {
			gauge(ch, d.entries, float64(n.Counts.Of(status)), topic, strings.ToLower(string(status)))
		}
	}
	m.collectOldest(ch)
	for _, state := range redrive.States() {
		if !state.Ended() {
			gauge(ch, d.runs, float64(a.runs[state]), string(state))
		}
	}
	for _, state := range redrive.ItemStates() {
		gauge(ch, d.runEntries, float64(a.items.Of(state)), string(state))
	}
	if m.cfg.LegacyNames {
		c := a.stats.Counts
		gauge(ch, d.legacy, float64(c.Pending+c.Retrying+c.Parked), "pending")
		gauge(ch, d.legacy, float64(c.Resolved), "resolved")
		gauge(ch, d.legacy, float64(c.Discarded), "discarded")
	}
}

// collectOldest shows the longest waiting entry of all, and that of each topic; that of the other topics if it is older
// than all of these.
func (m *Metrics) collectOldest(ch chan<- prometheus.Metric) {
	stats, d := &m.answer.stats, &m.descs
	gauge(ch, d.oldest, age(stats.OldestPending))
	among, seen := false, map[string]bool{}
	for i := range stats.ByTopic[:min(m.cfg.MaxTopics, len(stats.ByTopic))] {
		at := m.answer.oldest[stats.ByTopic[i].Name]
		among = among || !at.IsZero() && !at.After(stats.OldestPending)
		if topic := label(stats.ByTopic[i].Name); !seen[topic] {
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
	gauge(ch, d.spoolActive, is(s.StoreDown))
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
		of := []string{label(s.Broker), label(s.Topic)}
		gauge(ch, d.subscribed, is(s.Subscribed), of...)
		gauge(ch, d.failing, is(s.Err != ""), of...)
		gauge(ch, d.held, float64(s.Held), of...)
		counter(ch, d.collected, s.Collected, of...)
		counter(ch, d.givenBack, s.GivenBack, of...)
		last := 0.
		if !s.LastCollected.IsZero() {
			last = float64(s.LastCollected.Unix())
		}
		gauge(ch, d.lastCollected, last, of...)
	}
}
