package observability_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokermetrics"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/dlqmetrics"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/pipelinemetrics"
)

var errAway = errors.New("connection refused")

// running is a service in virtual time whose parts can fail on demand. Its metrics are scraped every minute.
type running struct {
	*testing.T

	broker   brokers.Broker
	store    *fragile
	letters  *dlq.Letters
	manager  *dlq.Manager
	runner   *redrive.Runner
	metrics  *dlqmetrics.Metrics
	handler  message.HandlerFunc
	registry *prometheus.Registry

	sinkAway, redriverAway error
	number                 int
	series                 map[string][]string
	minutes                int
}

// fragile is a store that can be down, or refuse letters permanently.
type fragile struct {
	dlq.Store

	away, refuses error
}

// Unwrap exposes the store's optional interfaces.
func (f *fragile) Unwrap() dlq.Store { return f.Store }

func (f *fragile) Ping(ctx context.Context) error {
	if f.away != nil {
		return f.away
	}
	return f.Store.Ping(ctx)
}

func (f *fragile) Put(ctx context.Context, letters ...*dlq.Entry) ([]driver.Receipt, error) {
	if err := cmp.Or(f.away, f.refuses); err != nil {
		return nil, err
	}
	return f.Store.Put(ctx, letters...)
}

func (f *fragile) Stats(ctx context.Context, q dlq.StatsQuery) (driver.Stats, error) {
	if f.away != nil {
		return driver.Stats{}, f.away
	}
	return f.Store.Stats(ctx, q)
}

// setting is how the services of the cases differ.
type setting struct {
	breaker    *middleware.Breaker
	fallback   bool
	spoolLimit int64
}

func startService(t *testing.T, dir string, s setting) *running {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	r := &running{T: t, registry: prometheus.NewRegistry(), series: map[string][]string{}}
	store, err := sqlstore.Open(t.Context(), "sqlite:"+filepath.Join(dir, "dead.db")+"?synchronous=normal")
	require.NoError(t, err)
	r.store = &fragile{Store: store}
	r.metrics, err = dlqmetrics.New(dlqmetrics.Config{LegacyNames: true})
	require.NoError(t, err)
	pipelines, err := pipelinemetrics.New(pipelinemetrics.Config{ServiceBus: "billing"})
	require.NoError(t, err)
	opts := []dlq.Option{dlq.WithObserver(r.metrics), dlq.WithLogger(quiet), dlq.WithSpool(filepath.Join(dir, "spool"))}
	if s.spoolLimit > 0 {
		opts = append(opts, dlq.WithSpoolLimit(s.spoolLimit))
	}
	r.letters, err = dlq.NewLetters(r.store, opts...)
	require.NoError(t, err)
	r.metrics.Watch(dlqmetrics.Sources{Letters: r.letters})
	r.broker, err = memory.New(brokers.Config{Group: "billing", Logger: quiet})
	require.NoError(t, err)
	r.registry.MustRegister(pipelines, r.metrics, brokermetrics.New(map[string]brokers.Broker{"main": r.broker}))
	cfg := middleware.Config{
		MaxAttempts: 3, Observer: pipelines, Logger: quiet, Breaker: s.breaker,
		HandlerName: func(context.Context) string { return "charge" }, PublishTries: 1, NackDelay: time.Nanosecond,
		Rescheduler: middleware.ReschedulerFunc(
			func(context.Context, envelope.Origin, *message.Message, time.Duration) error { return nil }),
		DeadLetters: middleware.DeadLetterFunc(func(ctx context.Context, d *envelope.DeadLetter) error {
			if r.sinkAway != nil {
				return r.sinkAway
			}
			return r.letters.DeadLetter(ctx, d)
		}),
	}
	if s.fallback {
		cfg.Fallback = middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { return nil })
	}
	pipeline, err := middleware.New(cfg)
	require.NoError(t, err)
	r.handler = pipeline.Middleware(func(m *message.Message) ([]*message.Message, error) {
		switch string(m.Payload) {
		case "invalid":
			return nil, middleware.Permanent(errors.New("invalid CPF"))
		case "bad":
			return nil, errors.New("the bank is down")
		}
		return nil, nil
	})
	redriver := dlq.RedriverFunc(func(context.Context, envelope.Origin, *message.Message, time.Duration) error {
		return r.redriverAway
	})
	r.manager = r.letters.Manager(redriver)
	limited, err := dlq.NewManager(dlq.ManagerConfig{
		Store: r.letters.Store(), Redriver: redriver, Approval: &dlq.Approval{Above: 10},
	})
	require.NoError(t, err)
	r.runner, err = redrive.NewRunner(limited, redrive.Config{})
	require.NoError(t, err)
	return r
}

func (r *running) stop() {
	require.NoError(r, r.letters.Close())
	require.NoError(r, r.broker.Close())
}

func (r *running) message(payload string, failures int) *message.Message {
	r.number++
	m := message.NewMessage(fmt.Sprint("m-", r.number), message.Payload(payload))
	m.Metadata = message.Metadata{
		envelope.KeyMessageID: m.UUID, envelope.KeyEvent: "order.placed",
		envelope.KeyRetryCount: strconv.Itoa(failures),
	}
	m.SetContext(envelope.WithOrigin(context.Background(),
		&envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing", Position: m.UUID}))
	return m
}

// handle delivers n messages with that many earlier failures. It does not check whether they are settled.
func (r *running) handle(n int, payload string, failures int) {
	for range n {
		_, _ = r.handler(r.message(payload, failures))
	}
}

// die stores n dead letters of that age directly.
func (r *running) die(n int, age time.Duration) {
	r.Helper()
	for range n {
		m := r.message("bad", 2)
		require.NoError(r, r.letters.DeadLetter(r.Context(), &envelope.DeadLetter{
			Message: m, Reason: envelope.ReasonExhausted, Err: envelope.Error{Message: "timeout"}, Handler: "charge",
			Attempts: 3, At: time.Now().Add(-age),
			Origin: envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing", Position: m.UUID},
		}))
	}
}

// scrape reads the metrics of this minute.
func (r *running) scrape() {
	r.Helper()
	families, err := r.registry.Gather()
	require.NoError(r, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := []string{`instance="a"`, `job="redrive"`}
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name, value := f.GetName(), m.GetCounter().GetValue()+m.GetGauge().GetValue()
			if h := m.GetHistogram(); h != nil {
				name, value = name+"_count", float64(h.GetSampleCount())
			}
			require.False(r, math.IsNaN(value) || math.IsInf(value, 0), name)
			key := name + "{" + strings.Join(labels, ",") + "}"
			for len(r.series[key]) < r.minutes {
				r.series[key] = append(r.series[key], "_")
			}
			r.series[key] = append(r.series[key], strconv.FormatFloat(value, 'g', -1, 64))
		}
	}
	r.minutes++
	for key, values := range r.series {
		if len(values) < r.minutes {
			r.series[key] = append(values, "_")
		}
	}
}

// firing returns the alerts of all rule files that fire at the end of the scraped data according to promtool.
func (r *running) firing(t *testing.T, want []string) {
	t.Helper()
	var b strings.Builder
	b.WriteString("rule_files:\n")
	for _, path := range files(t, "prometheus/rules/*.yml") {
		path, err := filepath.Abs(path)
		require.NoError(t, err)
		fmt.Fprintf(&b, "  - %s\n", path)
	}
	b.WriteString("evaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n")
	for key, values := range r.series {
		fmt.Fprintf(&b, "      - series: '%s'\n        values: '%s'\n", key, strings.Join(values, " "))
	}
	fmt.Fprintf(&b, "    promql_expr_test:\n      - expr: group by (alertname) (ALERTS{alertstate=\"firing\"})\n        "+
		"eval_time: %dm\n        exp_samples:\n", r.minutes-1)
	for _, name := range want {
		fmt.Fprintf(&b, "          - {labels: '{alertname=\"%s\"}', value: 1}\n", name)
	}
	path := filepath.Join(t.TempDir(), "test.yml")
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	promtool(t, "test", "rules", path)
}

// situation is a fault of a service and the alerts that fire because of it.
type situation struct {
	setting

	begin  func(r *running)
	minute func(r *running, n int)
	want   []string
}

// handled is how many messages a minute are handled without a fault.
const handled = 300

// storeSituations are those of the dead letter store and its runs.
var storeSituations = map[string]situation{
	"healthy": {minute: func(r *running, _ int) {
		r.handle(10*handled, "good", 0)
		r.handle(10, "bad", 0)
		r.handle(10, "good", 1)
		r.handle(1, "invalid", 0)
	}},
	"many pending": {
		begin: func(r *running) { r.die(1001, 0) },
		want:  []string{"RedriveTooManyPending", "DLQTooManyEvents"},
	},
	"forgotten":     {begin: func(r *running) { r.die(1, 25*time.Hour) }, want: []string{"RedriveOldestPending"}},
	"not forgotten": {begin: func(r *running) { r.die(1000, 22*time.Hour) }},
	"store away": {
		begin: func(r *running) { r.store.away = errAway; r.die(1, 0) },
		want:  []string{"RedriveStoreDown", "RedriveSpoolNotEmpty"},
	},
	"server gone": {
		begin: func(r *running) {
			r.registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "up", Help: "Made by Prometheus."}))
		},
		want: []string{"RedriveServerDown"},
	},
	"spool fills": {
		setting: setting{spoolLimit: 30_000},
		begin: func(r *running) {
			r.store.away = errAway
			for r.letters.Stats().Bytes < 25_000 {
				r.die(1, 0)
			}
		},
		want: []string{"RedriveStoreDown", "RedriveSpoolNotEmpty", "RedriveSpoolFilling"},
	},
	"store refuses": {
		begin: func(r *running) { r.store.refuses = fmt.Errorf("%w: value too long", dlq.ErrInvalid); r.die(1, 0) },
		want:  []string{"RedriveSpoolDamaged"},
	},
	"store fails for one letter": {
		begin: func(r *running) { r.store.refuses = errors.New("no room for this one"); r.die(1, 0) },
		want:  []string{"RedriveSpoolNotEmpty"},
	},
	"run stops": {
		begin: func(r *running) {
			r.die(3, 0)
			r.redriverAway = errAway
			run, err := r.runner.StartRun(r.Context(), redrive.Spec{Filter: dlq.Filter{Statuses: []dlq.Status{dlq.Pending}}},
				dlq.By{Actor: "ana"})
			require.NoError(r, err)
			run, err = r.runner.Drive(r.Context(), run.ID)
			require.NoError(r, err)
			require.Equal(r, redrive.Stopped, run.State)
		},
		want: []string{"RedriveRunStopped"},
	},
	"run waits": {
		begin: func(r *running) {
			r.die(11, 0)
			run, err := r.runner.StartRun(r.Context(), redrive.Spec{Filter: dlq.Filter{Statuses: []dlq.Status{dlq.Pending}}},
				dlq.By{Actor: "ana"})
			require.NoError(r, err)
			require.Equal(r, redrive.AwaitingApproval, run.State)
		},
		want: []string{"RedriveRunAwaitsApproval"},
	},
}

// queueSituations are those of queues, redrives and collectors.
var queueSituations = map[string]situation{
	"redrives fail": {
		begin: func(r *running) { r.die(1, 0); r.redriverAway = errAway },
		minute: func(r *running, _ int) {
			_, err := r.manager.Redrive(r.Context(), 1, dlq.By{Actor: "ana"})
			require.ErrorIs(r, err, errAway)
		},
		want: []string{"RedriveRedrivesFail"},
	},
	"source cannot be read": {
		begin: func(r *running) {
			c, err := collector.New(collector.Config{
				Sink: r.letters, Logger: slog.New(slog.DiscardHandler),
				Sources: []collector.Source{{Broker: "main", Topic: "mails_dlq", Subscriber: unreadable{}}},
			})
			require.NoError(r, err)
			ctx, cancel := context.WithCancel(r.Context())
			ended := make(chan error, 1)
			go func() { ended <- c.Run(ctx) }()
			r.Cleanup(func() { cancel(); require.NoError(r, <-ended) })
			r.metrics.Watch(dlqmetrics.Sources{Letters: r.letters, Collector: c})
		},
		want: []string{"RedriveCollectorSourceFailing"},
	},
	"queue not drained": {
		minute: func(r *running, _ int) {
			require.NoError(r, r.broker.Publisher().Publish("orders", r.message("good", 0)))
		},
		want: []string{"RedriveQueueNotDrained"},
	},
	"reminders wait": {minute: func(r *running, _ int) {
		for range 100 {
			m := r.message("good", 0)
			envelope.SetDelay(m, 24*time.Hour)
			require.NoError(r, r.broker.Publisher().Publish("orders", m))
		}
	}},
	"retries pile up": {
		minute: func(r *running, _ int) {
			for range 100 {
				require.NoError(r, r.broker.Reschedule(r.Context(), envelope.Origin{Topic: "orders", Consumer: "billing"},
					r.message("bad", 1), 24*time.Hour))
			}
		},
		want: []string{"RedriveRetriesPileUp"},
	},
	"dead letters not collected": {
		begin: func(r *running) {
			_, err := r.broker.Subscriber().Subscribe(r.Context(), "orders")
			require.NoError(r, err)
			require.NoError(r, r.broker.DeadLetter(r.Context(), &envelope.DeadLetter{
				Message: r.message("bad", 2), Origin: envelope.Origin{Topic: "orders", Consumer: "billing"},
			}))
		},
		want: []string{"RedriveDeadLettersNotCollected"},
	},
}

// pipelineSituations are those of handlers and their pipelines.
var pipelineSituations = map[string]situation{
	"some die": {
		minute: func(r *running, _ int) { r.handle(10*handled, "good", 0); r.handle(12, "invalid", 0) },
		want:   []string{"RedriveDeadLetterRate", "DLQHighErrorRate"},
	},
	"outage": {
		minute: func(r *running, _ int) { r.handle(10, "good", 0); r.handle(70, "bad", 2) },
		want: []string{
			"RedriveDeadLetterRate", "DLQHighErrorRate", "DLXQueueGrowing", "HighLastAttemptFailures",
			"RedriveLastAttemptsFail",
			"RedriveTooManyPending", "DLQTooManyEvents", "RedriveErrorBudgetBurns", "RedriveErrorBudgetBurnsFast",
		},
	},
	"dead letters cannot be kept": {
		begin:  func(r *running) { r.sinkAway = errAway },
		minute: func(r *running, _ int) { r.handle(handled, "good", 0); r.handle(1, "invalid", 0) },
		want:   []string{"RedriveDeadLetterPublishFailing", "RedriveNotSettled"},
	},
	"fallback": {
		setting: setting{fallback: true},
		begin:   func(r *running) { r.sinkAway = errAway },
		minute:  func(r *running, _ int) { r.handle(handled, "good", 0); r.handle(1, "invalid", 0) },
		want:    []string{"RedriveDeadLetterPublishFailing", "RedriveFallbackUsed"},
	},
	"first attempts fail": {
		minute: func(r *running, _ int) { r.handle(80, "good", 0); r.handle(20, "bad", 0); r.handle(20, "good", 1) },
		want:   []string{"RedriveHighRetryRate", "HighRetryRate"},
	},
	"circuit opens": {
		setting: setting{breaker: &middleware.Breaker{Failures: 2}},
		minute:  func(r *running, _ int) { r.handle(2, "bad", 0) }, // too few for a half-open circuit to open again
		want:    []string{"RedriveCircuitOpen", "RedriveHighRetryRate", "HighRetryRate"},
	},
	"budget burns fast": {
		minute: func(r *running, _ int) { r.handle(98, "good", 0); r.handle(2, "invalid", 0) },
		want:   []string{"RedriveErrorBudgetBurns", "RedriveErrorBudgetBurnsFast"},
	},
	"budget burns": {
		minute: func(r *running, _ int) { r.handle(99, "good", 0); r.handle(1, "invalid", 0) },
		want:   []string{"RedriveErrorBudgetBurns"},
	},
}

// Every alert fires on the metrics of a service in the situation that it is for, and no other alert does; without a
// fault, none fires.
func TestAlerts_OnService(t *testing.T) {
	fired := map[string]bool{}
	for _, group := range []map[string]situation{storeSituations, queueSituations, pipelineSituations} {
		for name, c := range group {
			for _, alert := range c.want {
				fired[alert] = true
			}
			t.Run(name, func(t *testing.T) { c.watch(t).firing(t, c.want) })
		}
	}
	for _, name := range alerts(t) {
		require.True(t, fired[name], "no case makes %s fire", name)
	}
}

// watch runs a service in the situation for 50 minutes.
func (c situation) watch(t *testing.T) (r *running) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r = startService(t, dir, c.setting)
		t.Cleanup(r.stop)
		r.scrape() // of a new service
		<-time.After(time.Minute)
		synctest.Wait()
		if c.begin != nil {
			c.begin(r)
		}
		for n := range 50 {
			if c.minute != nil {
				c.minute(r, n)
			}
			r.scrape()
			<-time.After(time.Minute)
			synctest.Wait()
		}
	})
	return r
}

// unreadable is a queue that does not exist.
type unreadable struct{}

func (unreadable) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return nil, errors.New("no such queue")
}
func (unreadable) Close() error { return nil }
