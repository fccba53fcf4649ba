package dlqmetrics_test

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/dlqmetrics"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
)

type world struct {
	metrics  *dlqmetrics.Metrics
	registry *prometheus.Registry
	store    *sometimes
	letters  *dlq.Letters
	manager  *dlq.Manager
	runner   *redrive.Runner
	refused  error
	sent     []*message.Message
}

// sometimes is a store that can be made to fail.
type sometimes struct {
	*sqlstore.Store

	away  error
	asked int
}

func (s *sometimes) Stats(ctx context.Context, q dlq.StatsQuery) (driver.Stats, error) {
	s.asked++
	if s.away != nil {
		return driver.Stats{}, s.away
	}
	return s.Store.Stats(ctx, q)
}

func (s *sometimes) Put(ctx context.Context, letters ...*dlq.Entry) ([]driver.Receipt, error) {
	if s.away != nil {
		return nil, s.away
	}
	return s.Store.Put(ctx, letters...)
}

func newWorld(t *testing.T, cfg dlqmetrics.Config) *world {
	t.Helper()
	store, err := sqlstore.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "dead.db")+"?synchronous=normal")
	require.NoError(t, err)
	w := &world{store: &sometimes{Store: store}, registry: prometheus.NewPedanticRegistry()}
	w.metrics, err = dlqmetrics.New(cfg)
	require.NoError(t, err)
	w.letters, err = dlq.NewLetters(w.store, dlq.WithObserver(w.metrics),
		dlq.WithSpool(filepath.Join(t.TempDir(), "spool")))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.letters.Close()) })
	var mu sync.Mutex // a run sends several at once
	redriver := dlq.RedriverFunc(func(_ context.Context, _ envelope.Origin, m *message.Message, _ time.Duration) error {
		mu.Lock()
		defer mu.Unlock()
		w.sent = append(w.sent, m)
		return w.refused
	})
	w.manager = w.letters.Manager(redriver)
	w.runner, err = redrive.NewRunner(w.letters.Manager(redriver), redrive.Config{})
	require.NoError(t, err)
	w.metrics.Watch(dlqmetrics.Sources{Letters: w.letters})
	w.registry.MustRegister(w.metrics)
	return w
}

// letter is the n-th message that died.
func letter(n int) *envelope.DeadLetter {
	id := "message-" + strconv.Itoa(n)
	m := message.NewMessage(id, message.Payload(`{"n":1}`))
	m.Metadata[envelope.KeyMessageID] = id
	return &envelope.DeadLetter{
		Message: m, Reason: envelope.ReasonExhausted, Err: envelope.Error{Message: "timeout"}, Handler: "charge",
		Origin:   envelope.Origin{Broker: "kafka", Topic: "orders", Consumer: "billing", Position: strconv.Itoa(n)},
		Attempts: 4, At: time.Now(),
	}
}

func (w *world) die(t *testing.T, n int) {
	t.Helper()
	d := letter(n)
	d.At = time.Now().Add(-time.Hour)
	require.NoError(t, w.letters.DeadLetter(t.Context(), d))
}

var by = dlq.By{Actor: "ana"}

func (w *world) expect(t *testing.T, text string, names ...string) {
	t.Helper()
	require.NoError(t, testutil.GatherAndCompare(w.registry, strings.NewReader(text), names...))
}

// Waiting entries, the actions on them, and how each redrive went.
func TestMetrics(t *testing.T) {
	w := newWorld(t, dlqmetrics.Config{
		Refresh: time.Nanosecond, LegacyNames: true,
		ResolutionBuckets: []float64{60, 7200},
	})
	for n := range 4 {
		w.die(t, n)
	}
	w.die(t, 3) // the same delivery once more
	_, err := w.manager.Redrive(t.Context(), 1, by)
	require.NoError(t, err)
	require.NoError(t, w.letters.Redriven(t.Context(), envelope.RedrivenBy(w.sent[0], envelope.Origin{}, time.Now())))
	_, err = w.manager.Redrive(t.Context(), 2, by)
	require.NoError(t, err)
	again := letter(1)
	again.Message = w.sent[1]
	require.NoError(t, w.letters.DeadLetter(t.Context(), again))
	w.refused = errors.New("broker is down")
	_, err = w.manager.Redrive(t.Context(), 3, by)
	require.Error(t, err)
	_, err = w.manager.Resolve(t.Context(), 3, by)
	require.NoError(t, err)
	_, err = w.manager.Discard(t.Context(), 4, by)
	require.NoError(t, err)
	_, err = w.manager.Discard(t.Context(), 4, by)
	require.ErrorIs(t, err, dlq.ErrConflict)

	w.expect(t, `
# HELP redrive_dlq_changes_total Changes of entries by this process: redrive, published, release, succeed, resolve, discard, park, restore.
# TYPE redrive_dlq_changes_total counter
redrive_dlq_changes_total{action="discard"} 1
redrive_dlq_changes_total{action="published"} 2
redrive_dlq_changes_total{action="redrive"} 3
redrive_dlq_changes_total{action="release"} 1
redrive_dlq_changes_total{action="resolve"} 1
redrive_dlq_changes_total{action="succeed"} 1
# HELP redrive_dlq_redrives_total Redriven messages by what this process knows of them: published, refused by the broker, succeeded, failed (died again).
# TYPE redrive_dlq_redrives_total counter
redrive_dlq_redrives_total{outcome="failed"} 1
redrive_dlq_redrives_total{outcome="published"} 2
redrive_dlq_redrives_total{outcome="refused"} 1
redrive_dlq_redrives_total{outcome="succeeded"} 1
# HELP redrive_dlq_stored_total Dead letters that this process has given to the store: stored for a new entry, seen for one reported before, died_again for a redriven one.
# TYPE redrive_dlq_stored_total counter
redrive_dlq_stored_total{outcome="died_again",reason="exhausted",topic="orders"} 1
redrive_dlq_stored_total{outcome="seen",reason="exhausted",topic="orders"} 1
redrive_dlq_stored_total{outcome="stored",reason="exhausted",topic="orders"} 4
# HELP redrive_dlq_entries Dead letters in the store, by status.
# TYPE redrive_dlq_entries gauge
redrive_dlq_entries{status="discarded",topic="orders"} 1
redrive_dlq_entries{status="parked",topic="orders"} 0
redrive_dlq_entries{status="pending",topic="orders"} 1
redrive_dlq_entries{status="resolved",topic="orders"} 2
redrive_dlq_entries{status="retrying",topic="orders"} 0
# HELP dlq_events_total Older name: dead letters that are pending (not closed), resolved and discarded. A gauge.
# TYPE dlq_events_total gauge
dlq_events_total{status="discarded"} 1
dlq_events_total{status="pending"} 1
dlq_events_total{status="resolved"} 2
`, "redrive_dlq_changes_total", "redrive_dlq_redrives_total", "redrive_dlq_stored_total", "redrive_dlq_entries",
		"dlq_events_total")

	values := gather(t, w.registry)
	require.InDelta(t, 3600, values["redrive_dlq_oldest_pending_age_seconds"], 60)
	require.InDelta(t, 2, values["dlq_resolution_time_seconds"], 0, "C31")
	require.InDelta(t, 1, values["redrive_dlq_resolution_duration_seconds{redrive}"], 0)
	require.InDelta(t, 1, values["redrive_dlq_resolution_duration_seconds{operator}"], 0)
}

// gather returns the values of gauges and counters, and the counts of histograms.
func gather(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			if len(labels) > 0 {
				name += "{" + strings.Join(labels, ",") + "}"
			}
			values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// An old dead letter shows under its topic, so that its owner can be found.
func TestMetrics_OldestOfTopics(t *testing.T) {
	w := newWorld(t, dlqmetrics.Config{Refresh: time.Nanosecond, MaxTopics: 2})
	die := func(topic string, hours ...int) {
		for _, h := range hours {
			d := letter(len(topic)*100 + h)
			d.Origin.Topic, d.At = topic, time.Now().Add(-time.Duration(h)*time.Hour)
			require.NoError(t, w.letters.DeadLetter(t.Context(), d))
		}
	}
	const name = "redrive_dlq_topic_oldest_pending_age_seconds"
	die("orders", 3, 7, 5)
	die("invoices", 2, 1)
	values := gather(t, w.registry)
	require.InDelta(t, 7*3600, values[name+"{orders}"], 60)
	require.InDelta(t, 2*3600, values[name+"{invoices}"], 60)
	require.NotContains(t, values, name+"{other}")

	die("mails", 4) // one topic too many, and younger than the oldest one
	require.NotContains(t, gather(t, w.registry), name+"{other}")
	_, err := w.manager.Resolve(t.Context(), 2, by)
	require.NoError(t, err)
	require.InDelta(t, 5*3600, gather(t, w.registry)[name+"{orders}"], 60, "what is closed waits no more")
	_, err = w.manager.Resolve(t.Context(), 3, by)
	require.NoError(t, err)
	values = gather(t, w.registry)
	require.InDelta(t, 4*3600, values[name+"{other}"], 60, "the oldest of all, which is none of the two topics'")
	require.InDelta(t, 4*3600, values["redrive_dlq_oldest_pending_age_seconds"], 60)
	for id := int64(4); id <= 5; id++ {
		_, err = w.manager.Discard(t.Context(), id, by)
		require.NoError(t, err)
	}
	require.Zero(t, gather(t, w.registry)[name+"{invoices}"])

	w.store.away = errors.New("connection refused")
	require.NotContains(t, gather(t, w.registry), name+"{orders}")
}

// While the store is down, the spool shows it, and old numbers are not shown.
func TestMetrics_StoreDown(t *testing.T) {
	w := newWorld(t, dlqmetrics.Config{Refresh: time.Nanosecond})
	w.die(t, 0)
	up := gather(t, w.registry)
	require.InDelta(t, 1, up["redrive_dlq_store_up"], 0)
	require.InDelta(t, 0, up["redrive_dlq_spool_bytes"], 0)

	w.store.away = errors.New("connection refused")
	w.die(t, 1)
	away := gather(t, w.registry)
	require.InDelta(t, 0, away["redrive_dlq_store_up"], 0)
	require.NotContains(t, away, "redrive_dlq_entries{orders,pending}")
	require.NotContains(t, away, "redrive_dlq_oldest_pending_age_seconds")
	require.Positive(t, away["redrive_dlq_spool_bytes"])
	require.InDelta(t, 1, away["redrive_dlq_spool_active"], 0)
	require.InDelta(t, 1, away["redrive_dlq_spool_records_total{appended}"], 0)
	require.Positive(t, away["redrive_dlq_store_errors_total{put}"])
	require.InDelta(t, 1, away["redrive_dlq_store_errors_total{stats}"], 0)
}

// However many scrapes there are, the store is queried only once per interval.
func TestMetrics_AsksSeldom(t *testing.T) {
	w := newWorld(t, dlqmetrics.Config{Refresh: time.Hour})
	for range 50 {
		gather(t, w.registry)
	}
	require.Equal(t, 1, w.store.asked)
}

// The work of runs is counted, and those that have not ended show their progress.
func TestMetrics_Runs(t *testing.T) {
	w := newWorld(t, dlqmetrics.Config{Refresh: time.Nanosecond})
	for n := range 5 {
		w.die(t, n)
	}
	all := dlq.Filter{Statuses: []dlq.Status{dlq.Pending}}
	_, err := w.runner.StartRun(t.Context(), redrive.Spec{Filter: all, Paused: true}, by)
	require.NoError(t, err)
	waiting := gather(t, w.registry)
	require.InDelta(t, 1, waiting["redrive_dlq_runs{paused}"], 0)
	require.InDelta(t, 5, waiting["redrive_dlq_run_entries{waiting}"], 0)

	run, err := w.runner.StartRun(t.Context(), redrive.Spec{Filter: all, CloseOnPublish: true}, by)
	require.NoError(t, err)
	run, err = w.runner.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, redrive.Completed, run.State)
	done := gather(t, w.registry)
	require.InDelta(t, 5, done["redrive_dlq_redrives_total{published}"], 0)
	require.InDelta(t, 5, done["redrive_dlq_redrives_total{succeeded}"], 0)
	require.InDelta(t, 0, done["redrive_dlq_runs{running}"], 0)
	for _, action := range []string{"redrive", "succeed"} {
		require.InDelta(t, 5, done["redrive_dlq_changes_total{"+action+"}"], 0, action)
	}
	require.InDelta(t, 5, done["redrive_dlq_resolution_duration_seconds{redrive}"], 0)
}

// Entries whose broker's confirm is the outcome are counted once, whether the router or the run records it first. What
// the broker refuses is counted as refused, in a run too.
func TestMetrics_Confirmed(t *testing.T) {
	w := newWorld(t, dlqmetrics.Config{Refresh: time.Nanosecond})
	for n := range 5 {
		d := letter(n)
		d.Collected.Broker = "main"
		require.NoError(t, w.letters.DeadLetter(t.Context(), d))
	}
	refused := 0
	router, err := collector.NewRouter(collector.RouterConfig{
		Targets: []collector.Target{{
			Name: "main", Scheme: "kafka", Redriver: dlq.RedriverFunc(func(_ context.Context, _ envelope.Origin,
				m *message.Message, _ time.Duration,
			) error {
				if m.UUID == "message-4" {
					refused++ // alone, in the second run
					return errors.New("too large")
				}
				return nil
			}),
		}},
		Store: w.letters.Store(),
	})
	require.NoError(t, err)
	entry, err := w.letters.Manager(router).Redrive(t.Context(), 1, by)
	require.NoError(t, err)
	require.Equal(t, dlq.Retrying, entry.Status)
	one := gather(t, w.registry)
	require.InDelta(t, 1, one["redrive_dlq_redrives_total{published}"], 0)
	require.InDelta(t, 1, one["redrive_dlq_redrives_total{succeeded}"], 0)
	require.InDelta(t, 0, one["redrive_dlq_changes_total{published}"], 0, "the entry was closed before")

	runner, err := redrive.NewRunner(w.letters.Manager(router), redrive.Config{})
	require.NoError(t, err)
	for _, spec := range []redrive.Spec{
		{Filter: dlq.Filter{IDs: []int64{2, 3, 4}}, CloseOnPublish: true},
		{Filter: dlq.Filter{IDs: []int64{5}}},
	} {
		run, err := runner.StartRun(t.Context(), spec, by)
		require.NoError(t, err)
		_, err = runner.Drive(t.Context(), run.ID)
		require.NoError(t, err)
	}
	all := gather(t, w.registry)
	require.InDelta(t, 4, all["redrive_dlq_redrives_total{published}"], 0)
	require.InDelta(t, 4, all["redrive_dlq_redrives_total{succeeded}"], 0)
	require.InDelta(t, 4, all["redrive_dlq_resolution_duration_seconds{redrive}"], 0)
	require.InDelta(t, 4, all["redrive_dlq_changes_total{succeed}"], 0)
	require.Positive(t, refused)
	require.InDelta(t, refused, all["redrive_dlq_redrives_total{refused}"], 0)
	require.InDelta(t, 4+refused, all["redrive_dlq_changes_total{redrive}"], 0)
}

type broken struct{}

func (broken) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return nil, errors.New("no such queue")
}
func (broken) Close() error { return nil }

// A source that cannot be read shows.
func TestMetrics_Collector(t *testing.T) {
	w := newWorld(t, dlqmetrics.Config{})
	c, err := collector.New(collector.Config{
		Sink:    w.letters,
		Sources: []collector.Source{{Broker: "main", Topic: "orders_dlq", Subscriber: broken{}}},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	require.Eventually(t, func() bool { return c.Stats()[0].Err != "" }, 2*time.Minute, time.Millisecond)
	w.metrics.Watch(dlqmetrics.Sources{Letters: w.letters, Collector: c})
	values := gather(t, w.registry)
	require.InDelta(t, 1, values["redrive_collector_failing{main,orders_dlq}"], 0)
	require.InDelta(t, 0, values["redrive_collector_subscribed{main,orders_dlq}"], 0)
	cancel()
	require.NoError(t, <-ended)
}

// Names follow the conventions, except an older system's name for its gauge.
func TestMetrics_LintAndBounds(t *testing.T) {
	w := newWorld(t, dlqmetrics.Config{LegacyNames: true, MaxTopics: 2})
	for n, topic := range []string{"a", "b", "b", "c", "d", "d", "bad \xff"} {
		d := letter(n)
		d.Origin.Topic = topic
		require.NoError(t, w.letters.DeadLetter(t.Context(), d))
	}
	problems, err := testutil.GatherAndLint(w.registry)
	require.NoError(t, err)
	for _, p := range problems {
		require.Equal(t, "dlq_events_total", p.Metric, p.Text)
	}
	values := gather(t, w.registry)
	require.InDelta(t, 2, values["redrive_dlq_entries{pending,b}"], 0)
	require.InDelta(t, 2, values["redrive_dlq_entries{pending,d}"], 0)
	require.InDelta(t, 3, values["redrive_dlq_entries{pending,other}"], 0)
	require.NotContains(t, values, "redrive_dlq_entries{pending,a}")
}

// A header names the reason, so that a producer can write any text, and a different one each time.
func TestMetrics_ReasonsAreBounded(t *testing.T) {
	w := newWorld(t, dlqmetrics.Config{})
	for n := range 40 {
		d := letter(n)
		d.Reason = envelope.Reason("\xff" + strconv.Itoa(n))
		w.metrics.Put([]*dlq.Entry{{Origin: d.Origin, Reason: d.Reason}}, []driver.Receipt{{Result: driver.Stored}})
	}
	series := 0
	for name, value := range gather(t, w.registry) {
		if strings.HasPrefix(name, "redrive_dlq_stored_total") {
			series++
			if strings.Contains(name, "other") {
				require.InDelta(t, 8, value, 0)
			}
		}
	}
	require.Equal(t, 33, series)
}
