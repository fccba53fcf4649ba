// Package observability_test tests the alerts and dashboards of deploy/ with promtool, and with a real Prometheus that
// scrapes a service.
package observability_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the SQL driver

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokermetrics"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqmetrics"
	_ "github.com/redrive-go/redrive/dlq/sqlstore" // sqlite
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/pipelinemetrics"
)

const deploy = "../../deploy"

// tool returns a program of Debian's prometheus package, which is required if services are.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("REQUIRE_SERVICES") == "1" {
			t.Fatalf("%s is required (REQUIRE_SERVICES=1) and not installed: integration/install.sh promtool", name)
		}
		t.Skipf("%s is not installed: integration/install.sh promtool", name)
	}
	return path
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), tool(t, "promtool"), args...).CombinedOutput()
	require.NoError(t, err, "promtool %s\n%s", strings.Join(args, " "), out)
}

func files(t *testing.T, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(deploy, pattern))
	require.NoError(t, err)
	require.NotEmpty(t, found, pattern)
	return found
}

// The rules are valid, and each alert fires when it should and at no other time.
func TestRules(t *testing.T) {
	promtool(t, append([]string{"check", "rules"}, files(t, "prometheus/rules/*.yml")...)...)
	promtool(t, append([]string{"test", "rules"}, files(t, "prometheus/tests/*.yml")...)...)
	promtool(t, "check", "config", filepath.Join(deploy, "prometheus/prometheus.yml"))
}

// Each alert has a test in which it fires and one in which it does not.
func TestRules_AllAreTested(t *testing.T) {
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, path := range files(t, "prometheus/tests/*.yml") {
		var file struct {
			Tests []struct {
				AlertRuleTest []struct {
					Alertname string `yaml:"alertname"`
					ExpAlerts []any  `yaml:"exp_alerts"`
				} `yaml:"alert_rule_test"`
			} `yaml:"tests"`
		}
		read(t, path, &file)
		for _, test := range file.Tests {
			for _, a := range test.AlertRuleTest {
				if len(a.ExpAlerts) > 0 {
					fires[a.Alertname] = true
				} else {
					quiet[a.Alertname] = true
				}
			}
		}
	}
	for _, name := range alerts(t) {
		require.True(t, fires[name], "no test makes %s fire", name)
		require.True(t, quiet[name], "no test shows %s not firing", name)
	}
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, into), path)
}

func alerts(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, path := range files(t, "prometheus/rules/*.yml") {
		var file struct {
			Groups []struct {
				Rules []struct {
					Alert string `yaml:"alert"`
				} `yaml:"rules"`
			} `yaml:"groups"`
		}
		read(t, path, &file)
		for _, g := range file.Groups {
			for _, r := range g.Rules {
				if r.Alert != "" {
					names = append(names, r.Alert)
				}
			}
		}
	}
	require.Greater(t, len(names), 20)
	return names
}

// service is a service with metrics: the payload of each message names its outcome.
type service struct {
	handle  func(payload, event string, failures int)
	resolve func()
	server  *httptest.Server
}

func newService(t *testing.T) *service {
	t.Helper()
	pipelines, err := pipelinemetrics.New(pipelinemetrics.Config{ServiceBus: "billing"})
	require.NoError(t, err)
	deadLetters, err := dlqmetrics.New(dlqmetrics.Config{LegacyNames: true, Refresh: time.Millisecond})
	require.NoError(t, err)
	letters, err := dlq.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "dead.db")+"?synchronous=normal",
		dlq.WithObserver(deadLetters), dlq.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	deadLetters.Watch(dlqmetrics.Sources{Letters: letters})
	registry := prometheus.NewRegistry()
	broker, err := memory.New(brokers.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	waiting := message.NewMessage("waiting", nil)
	envelope.SetDelay(waiting, time.Hour)
	require.NoError(t, broker.Publisher().Publish("orders", waiting))
	_, err = broker.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.NoError(t, broker.DeadLetter(t.Context(), &envelope.DeadLetter{
		Message: message.NewMessage("dead", nil),
		Origin:  envelope.Origin{Broker: "mem", Topic: "orders", Consumer: brokers.DefaultGroup},
	}))
	registry.MustRegister(pipelines, deadLetters, brokermetrics.New(map[string]brokers.Broker{"main": broker}))
	pipeline, err := middleware.New(middleware.Config{
		MaxAttempts: 3, Observer: pipelines, DeadLetters: letters, Logger: slog.New(slog.DiscardHandler),
		HandlerName: func(context.Context) string { return "charge" },
		Rescheduler: middleware.ReschedulerFunc(
			func(context.Context, envelope.Origin, *message.Message, time.Duration) error { return nil }),
	})
	require.NoError(t, err)
	run := pipeline.Middleware(func(m *message.Message) ([]*message.Message, error) {
		if string(m.Payload) == "bad" {
			return nil, errors.New("the bank is down")
		}
		return nil, nil
	})
	n, resolved := 0, int64(0)
	s := &service{server: httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))}
	t.Cleanup(s.server.Close)
	manager := letters.Manager(nil)
	s.resolve = func() {
		resolved++
		await.True(t, func() bool { // it may reach a slow store later, from the spool
			_, err := manager.Resolve(t.Context(), resolved, dlq.By{Actor: "ana"})
			return err == nil
		}, "entry %d cannot be resolved", resolved)
	}
	s.handle = func(payload, event string, failures int) {
		n++
		id := fmt.Sprintf("m-%d", n)
		m := message.NewMessage(id, message.Payload(payload))
		m.Metadata = message.Metadata{
			envelope.KeyMessageID: id, envelope.KeyEvent: event,
			envelope.KeyRetryCount: strconv.Itoa(failures),
		}
		m.SetContext(envelope.WithOrigin(context.Background(),
			&envelope.Origin{Broker: "mem", Topic: "orders", Consumer: "billing", Position: id}))
		_, err := run(m)
		require.NoError(t, err)
	}
	return s
}

// prometheusServer starts a Prometheus that scrapes target every second, with the rules of deploy/, and stops with the
// test.
func prometheusServer(t *testing.T, target string) (api string) {
	t.Helper()
	binary := tool(t, "prometheus")
	rules, err := filepath.Abs(filepath.Join(deploy, "prometheus/rules"))
	require.NoError(t, err)
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: ["%s/*.yml"]
scrape_configs: [{job_name: redrive, metrics_path: /, static_configs: [{targets: ["%s"]}]}]
`, rules, target), 0o600))
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(services.FreePorts(t, 1)[0]))
	var log bytes.Buffer
	cmd := exec.Command(binary, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	api = "http://" + address
	await.True(t, func() bool {
		status, _ := get(t, api+"/-/ready")
		return status == http.StatusOK
	})
	return api
}

func get(t *testing.T, address string) (int, []byte) {
	t.Helper()
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, address, http.NoBody)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, nil
	}
	return response.StatusCode, body
}

// ask evaluates a query and returns the number of series in the result.
func ask(t *testing.T, api, expr string) int {
	t.Helper()
	status, body := get(t, api+"/api/v1/query?query="+url.QueryEscape(expr))
	require.Equal(t, http.StatusOK, status, "%s: %s", expr, body)
	var answer struct {
		Data struct{ Result []any }
	}
	require.NoError(t, json.Unmarshal(body, &answer))
	return len(answer.Data.Result)
}

// A Prometheus that scrapes a service accepts every query of every panel, and queries about events that have happened
// return a result.
func TestDashboards_OnPrometheus(t *testing.T) {
	s := newService(t)
	api := prometheusServer(t, strings.TrimPrefix(s.server.URL, "http://"))
	// for features that this service does not use, or older events
	quiet := regexp.MustCompile(`collector|circuit|ratio_rate|broker_(acks|c)`)
	type panel struct{ where, expr string }
	var panels []panel
	for _, path := range files(t, "grafana/dashboards/*.json") {
		var dashboard struct {
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &dashboard))
		for _, p := range dashboard.Panels {
			for _, target := range p.Targets {
				expr := strings.NewReplacer("$__rate_interval", "5m", "$handler", ".*", "$topic", ".*", "$service",
					".*").Replace(target.Expr)
				panels = append(panels, panel{filepath.Base(path) + ": " + p.Title, expr})
			}
		}
	}
	require.Greater(t, len(panels), 40)
	traffic := func() {
		s.handle("good", "order.placed", 0)
		s.handle("bad", "order.placed", 0)
		s.handle("bad", "order.placed", 2)
		s.resolve()
	}
	for _, p := range panels {
		if quiet.MatchString(p.expr) {
			require.GreaterOrEqual(t, ask(t, api, p.expr), 0, p.where)
			continue
		}
		await.True(t, func() bool {
			traffic()
			return ask(t, api, p.expr) > 0
		}, "%s: %s", p.where, p.expr)
	}
	status, body := get(t, api+"/api/v1/rules")
	require.Equal(t, http.StatusOK, status)
	for _, name := range alerts(t) {
		require.Contains(t, string(body), `"name":"`+name+`"`)
	}
	await.True(t, func() bool {
		_, body = get(t, api+"/api/v1/rules")
		return !strings.Contains(string(body), `"health":"unknown"`)
	})
	require.NotContains(t, string(body), `"health":"err"`)
}
