package docstest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokermetrics"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/dlqmetrics"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/pipelinemetrics"
	"github.com/redrive-go/redrive/middleware/tracing"
)

// observed wires a service with metrics of its pipeline and its dead letters. ServiceBus and LegacyNames are for
// dashboards and alerts on older names.
func observed(ctx context.Context, broker brokers.Broker, url string) (*middleware.Pipeline, *dlq.Letters,
	prometheus.Gatherer, error,
) {
	pipelines, err := pipelinemetrics.New(pipelinemetrics.Config{ServiceBus: "billing"})
	if err != nil {
		return nil, nil, nil, err
	}
	deadLetters, err := dlqmetrics.New(dlqmetrics.Config{LegacyNames: true})
	if err != nil {
		return nil, nil, nil, err
	}
	letters, err := dlq.Open(ctx, url, dlq.WithObserver(deadLetters))
	if err != nil {
		return nil, nil, nil, err
	}
	deadLetters.Watch(dlqmetrics.Sources{Letters: letters})
	registry := prometheus.NewRegistry()
	registry.MustRegister(pipelines, deadLetters, brokermetrics.New(map[string]brokers.Broker{"main": broker}))
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker,
		DeadLetters: letters,
		Observer:    pipelines, // alongside traces: middleware.Observers{pipelines, tracer}
		Breaker:     &middleware.Breaker{Failures: 3},
	})
	return pipeline, letters, registry, err
}

// traced wires a service with traces of what it publishes, of every attempt and of redrives.
func traced(broker brokers.Broker, letters *dlq.Letters, metrics middleware.Observer,
	handler slog.Handler,
) (message.Publisher, *middleware.Pipeline, *dlq.Manager, error) {
	tracer := tracing.New(tracing.Config{})
	publisher := tracer.Publisher(broker.Publisher(), broker.Capabilities().Scheme)
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker,
		DeadLetters: letters,
		Observer:    middleware.Observers{metrics, tracer},
		Logger:      slog.New(tracing.LogHandler(handler)), // with trace_id and message_id
	})
	manager := letters.Manager(tracer.Redriver(broker))
	return publisher, pipeline, manager, err
}

// The wiring in the page works unchanged.
func TestObserve_Traced(t *testing.T) {
	broker, err := memory.New(brokers.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	letters, err := dlq.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "dead.db"))
	require.NoError(t, err)
	publisher, pipeline, manager, err := traced(broker, letters, middleware.NopObserver{}, slog.DiscardHandler)
	require.NoError(t, err)
	require.NoError(t, publisher.Publish("orders", message.NewMessage("1", nil)))
	_, err = pipeline.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, nil
	})(message.NewMessage("1", nil))
	require.NoError(t, err)
	_, err = manager.Count(t.Context(), dlq.Filter{}, 0)
	require.NoError(t, err)
	require.NoError(t, letters.Close())
	require.NoError(t, broker.Close())
}

// gathered returns the metrics of a service in which everything has happened once: a message that succeeds, others that
// die or are deferred, a redrive, a run, a collector.
func gathered(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	broker, err := memory.New(brokers.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	pipeline, letters, registry, err := observed(t.Context(), broker, "sqlite:"+filepath.Join(t.TempDir(), "dead.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(pipeline.Middleware)
	handled := make(chan string, 100)
	router.AddConsumerHandler("charge", "orders", broker.Subscriber(), func(m *message.Message) error {
		a, _ := middleware.AttemptFrom(m.Context())
		defer func() { handled <- string(m.Payload) + a.RedriveID }()
		switch {
		case a.RedriveID != "":
			return nil
		case string(m.Payload) == "bad":
			return middleware.Permanent(errors.New("invalid"))
		case string(m.Payload) == "later":
			return middleware.RetryAfter(errors.New("busy"), time.Hour)
		}
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()
	publish := func(payloads ...string) {
		for _, payload := range payloads {
			m := message.NewMessage(watermill.NewUUID(), message.Payload(payload))
			m.Metadata["x-event"] = "order.placed"
			require.NoError(t, broker.Publisher().Publish("orders", m))
			<-handled
		}
	}
	publish("good", "bad", "bad")
	manager := letters.Manager(broker)
	var pending int64
	for pending < 2 {
		pending, err = manager.Count(t.Context(), dlq.Filter{Statuses: []dlq.Status{dlq.Pending}}, 0)
		require.NoError(t, err)
	}
	_, err = manager.Redrive(t.Context(), 1, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	<-handled
	publish("later", "later", "later") // which opens the circuit
	source, err := collector.New(collector.Config{
		Sink:    letters,
		Sources: []collector.Source{{Broker: "main", Topic: "mails_dlq", Subscriber: broker.Subscriber()}},
	})
	require.NoError(t, err)
	cancel()
	require.NoError(t, <-ended, "so that outcomes are recorded")

	sources, err := dlqmetrics.New(dlqmetrics.Config{})
	require.NoError(t, err)
	sources.Watch(dlqmetrics.Sources{Collector: source})
	counted := brokermetrics.New(map[string]brokers.Broker{"bus": counting{broker}})
	families, err := prometheus.Gatherers{
		registry, only(t, sources, "redrive_collector_"),
		only(t, counted, "redrive_broker_"),
	}.Gather()
	require.NoError(t, err)
	require.NoError(t, broker.Close())
	return families
}

// counting reports connections and channels, like a broker with a server.
type counting struct{ brokers.Broker }

func (counting) Counts() (connections, channels int) { return 2, 7 }
func (counting) AcksFailed() uint64                  { return 3 }

// only gathers the metrics with the prefix.
func only(t *testing.T, c prometheus.Collector, prefix string) prometheus.Gatherer {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := registry.Gather()
		return slices.DeleteFunc(families, func(f *dto.MetricFamily) bool { return !strings.HasPrefix(f.GetName(), prefix) }),
			err
	})
}

func labelsOf(f *dto.MetricFamily) []string {
	var names []string
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			if !slices.Contains(names, l.GetName()) {
				names = append(names, l.GetName())
			}
		}
	}
	slices.Sort(names)
	return names
}

// docs/metrics.md is generated from what is gathered: `go test ./internal/docstest -run Metrics -update` writes it.
func TestMetrics_Page(t *testing.T) {
	var b strings.Builder
	b.WriteString(metricsHead)
	for _, f := range gathered(t) {
		labels := "`" + strings.Join(labelsOf(f), "`, `") + "`"
		if labels == "``" {
			labels = ""
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), labels, f.GetHelp())
	}
	path := filepath.Join(root, "docs", "metrics.md")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, b.String(), string(text), "go test ./internal/docstest -run Metrics -update")
}

const metricsHead = `# Metrics

A test generates this page, from a service that has used every metric once. Names follow the conventions of
Prometheus, except for those of two older systems, which begin with
` + "`dlq_`" + `, ` + "`event_`" + `, ` + "`rmq_consumer_`" + `:
they are off by default, and keep the dashboards and alerts of these systems working. The [runbook](runbook.md)
explains each alert.

A few lines export the metrics of a service's pipelines, store and brokers; the library does not open a port:

` + "```go" + `
pipelines, err := pipelinemetrics.New(pipelinemetrics.Config{ServiceBus: "billing"})
deadLetters, err := dlqmetrics.New(dlqmetrics.Config{LegacyNames: true})
letters, err := dlq.Open(ctx, url, dlq.WithObserver(deadLetters))
deadLetters.Watch(dlqmetrics.Sources{Letters: letters})
registry.MustRegister(pipelines, deadLetters, brokermetrics.New(map[string]brokers.Broker{"main": broker}))
Observer:    pipelines, // alongside traces: middleware.Observers{pipelines, tracer}
` + "```" + `

` + "`redrive serve`" + ` has those of the store, the runs, the collector and the brokers at /metrics, for the role metrics
and up; ` + "`metrics.off`" + ` in its configuration turns them off, ` + "`metrics.legacy_names`" + ` adds the older names.
Topic, handler and event have a limited number of values: after the first 100, a new one is "other". Gauges of the
store, and of messages that wait in a broker, are the same in every process that watches it: take the maximum. Counters count
one process: take the sum. If there are several stores, give the metrics of each the label ` + "`store`" + `, by ConstLabels or
where Prometheus scrapes them: the alerts and dashboards of deploy/ tell stores apart by it.

Package pipelinestatsd sends the service bus names to a DogStatsD agent. There, each metric can be sampled by its name
and by the attempt's tag; the two rates multiply, and the agent scales up what it gets. A rate of 0 turns a metric
off. The environment variable ` + "`STATSD_SAMPLE_PAYLOAD`" + ` is the rate of ` + "`rmq_consumer_payload_bytes`" + `
where Rates has none. This sends all last attempts and a tenth of the first:

` + "```go" + `
Rates:    map[string]float64{pipelinestatsd.Started: 1},
TagRates: map[middleware.Tag]float64{middleware.TagFirst: 0.1},
` + "```" + `

` + "`rmq_consumer_ack_failed_total`" + ` needs the broker, because the broker counts acks: set AcksFailed to
` + "`brokermetrics.AcksFailed(broker)`" + ` in the configuration of both packages.

| metric | type | labels | meaning |
|---|---|---|---|
`

type query struct{ where, expr string }

// queries returns the queries of all panels and rules.
func queries(t *testing.T) []query {
	t.Helper()
	var all []query
	dashboards, err := filepath.Glob(filepath.Join(root, "deploy/grafana/dashboards/*.json"))
	require.NoError(t, err)
	require.Len(t, dashboards, 2)
	for _, path := range dashboards {
		var d struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
			Templating struct{ List []struct{ Query any } }
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &d))
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				expr := strings.NewReplacer("$__rate_interval", "5m", "$handler", ".*", "$topic", ".*", "$service",
					".*").Replace(target.Expr)
				require.NotContains(t, expr, "$", p.Title)
				all = append(all, query{filepath.Base(path) + ": " + p.Title, expr})
			}
		}
	}
	for _, r := range rules(t) {
		all = append(all, query{r.Alert + r.Record, r.Expr})
	}
	require.Greater(t, len(all), 60)
	return all
}

type rule struct {
	Alert, Record, Expr string
	Annotations         map[string]string
}

func rules(t *testing.T) []rule {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "deploy/prometheus/rules/*.yml"))
	require.NoError(t, err)
	require.Len(t, paths, 2)
	var all []rule
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		var file struct{ Groups []struct{ Rules []rule } }
		require.NoError(t, yaml.Unmarshal(text, &file))
		for _, g := range file.Groups {
			all = append(all, g.Rules...)
		}
	}
	return all
}

var (
	braces    = regexp.MustCompile(`\{[^}]*\}`)
	selector  = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^}]*\})?`)
	matcher   = regexp.MustCompile(`([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
	grouping  = regexp.MustCompile(`\b(?:by|without|on|ignoring)\s*\(([^)]*)\)`)
	durations = regexp.MustCompile(`\[[^\]]*\]|offset \w+`)
	number    = regexp.MustCompile(`^[0-9.]`)
)

// Every metric, label and value in a panel or a rule exists.
func TestDashboardsAndAlerts_QueryExistingMetrics(t *testing.T) {
	families := map[string]*dto.MetricFamily{}
	for _, f := range gathered(t) {
		families[f.GetName()] = f
		if f.GetType() == dto.MetricType_HISTOGRAM {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				families[f.GetName()+suffix] = f
			}
		}
	}
	recorded := map[string]bool{}
	for _, r := range rules(t) {
		recorded[r.Record] = r.Record != ""
	}
	words := []string{
		"sum", "rate", "max", "min", "by", "increase", "histogram_quantile", "topk", "and", "delta",
		"min_over_time", "or", "unless", "absent",
		"up", // Prometheus' own
	}
	asked := map[string]bool{}
	for _, q := range queries(t) {
		expr := durations.ReplaceAllString(grouping.ReplaceAllString(q.expr, ""), "")
		found := map[string][]string{}
		for _, s := range selector.FindAllStringSubmatch(expr, -1) {
			name := s[1]
			if slices.Contains(words, name) || number.MatchString(name) || recorded[name] {
				continue
			}
			if strings.Contains(strings.Join(braces.FindAllString(expr, -1), " "), name) &&
				!strings.Contains(braces.ReplaceAllString(expr, ""), name) {
				continue // a label
			}
			f := families[name]
			require.NotNil(t, f, "%s: no metric %s", q.where, name)
			asked[f.GetName()] = true
			have := append(labelsOf(f), "instance", "job", "store") // the last three are of the scrape
			if f.GetType() == dto.MetricType_HISTOGRAM {
				have = append(have, "le")
			}
			found[name] = have
			for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
				require.Contains(t, have, m[1], "%s: %s has no label %s", q.where, name, m[1])
			}
		}
		for _, g := range grouping.FindAllStringSubmatch(q.expr, -1) {
			for label := range strings.SplitSeq(g[1], ",") {
				for name, have := range found {
					require.Contains(t, have, strings.TrimSpace(label), "%s: %s has no label %s", q.where, name, label)
				}
			}
		}
	}
	for name, f := range families {
		if strings.HasPrefix(name, "redrive_") && name == f.GetName() && name != "redrive_collector_subscribed" &&
			name != "redrive_collector_last_collected_timestamp_seconds" && name != "redrive_dlq_spool_oldest_age_seconds" &&
			name != "redrive_dlq_spool_active" {
			require.True(t, asked[name], "%s is on no dashboard and in no alert", name)
		}
	}
}

// Every alert links to a section of the runbook, and every section belongs to an alert.
func TestRunbook(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "runbook.md"))
	require.NoError(t, err)
	sections := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(string(text), -1) {
		sections[strings.ToLower(m[1])] = false
	}
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		link := r.Annotations["runbook_url"]
		file, anchor, _ := strings.Cut(link, "#")
		require.Equal(t, "https://github.com/redrive-go/redrive/blob/main/docs/runbook.md", file, r.Alert)
		require.Contains(t, sections, anchor, r.Alert)
		sections[anchor] = true
		require.NotEmpty(t, r.Annotations["summary"], r.Alert)
	}
	for anchor, used := range sections {
		require.True(t, used, "no alert leads to %s", anchor)
	}
}
