package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/config"
	"github.com/redrive-go/redrive/internal/logbuffer"
)

// start runs the program until the test ends or stop is called, which returns the exit code.
func start(t *testing.T, args ...string) (stdout, stderr *logbuffer.Buffer, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stdout, stderr = &logbuffer.Buffer{}, &logbuffer.Buffer{}
	done := make(chan int, 1)
	go func() { done <- runContext(ctx, args, strings.NewReader(""), stdout, stderr) }()
	stop = sync.OnceValue(func() int {
		cancel()
		return <-done
	})
	t.Cleanup(func() { stop() })
	return stdout, stderr, stop
}

// anyPort is the address of a server in a test. A port chosen beforehand might be taken by then: packages are tested
// side by side.
const anyPort = "127.0.0.1:0"

// serving matches the log of serve and the output of demo.
var serving = regexp.MustCompile(`(?:serving|look) .*(https?://127\.0\.0\.1:\d+)`)

// served waits until a server has announced its address, and returns it.
func served(t *testing.T, log *logbuffer.Buffer) (url string) {
	t.Helper()
	require.Eventually(t, func() bool {
		found := serving.FindStringSubmatch(log.String())
		if found != nil {
			url = found[1]
		}
		return found != nil
	}, 2*time.Minute, 5*time.Millisecond, log)
	return url
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	var body bytes.Buffer
	_, err = body.ReadFrom(response.Body)
	require.NoError(t, err)
	return response.StatusCode, body.String()
}

// Serve collects a service's dead letter queue, continues a run that another process has started, reports its health,
// and drains.
func TestServe(t *testing.T) {
	hermetic(t)
	dir := t.TempDir()
	store, queue := filepath.Join(dir, "dead.db"), "sqlite:"+filepath.Join(dir, "queue.db")
	file := filepath.Join(dir, "redrive.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `
store: {url: %q}
brokers: {queue: {url: %q}}
collector: {sources: [{broker: queue, topic: orders.billing_dlq}]}
server: {address: %q}
`, "sqlite:"+store+"?synchronous=normal", queue, anyPort), 0o600))

	service, err := brokers.Open(t.Context(), queue, func(c *brokers.Config) { c.Group = "billing" })
	require.NoError(t, err)
	defer func() { require.NoError(t, service.Close()) }()
	consumer, err := service.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	dead := envelope.RecordFailure(message.NewMessage("m-1", []byte("order")), envelope.Failure{
		Err: envelope.Error{Message: "bank: timeout"}, Retry: 4, Reason: envelope.ReasonExhausted, Handler: "pay",
		Topic: "orders",
	})
	require.NoError(t, service.DeadLetter(t.Context(), &envelope.DeadLetter{
		Message: dead, Origin: envelope.Origin{Topic: "orders", Consumer: "billing"},
	}))

	_, stderr, stop := start(t, "serve", "--config", file)
	url := served(t, stderr)
	require.Eventually(t, func() bool {
		_, body := get(t, url+"/readyz")
		return strings.Contains(body, `"collected":1`)
	}, 2*time.Minute, 20*time.Millisecond, stderr)
	status, body := get(t, url+"/readyz")
	require.Equal(t, http.StatusOK, status)
	var report dlqhttp.Health
	require.NoError(t, json.Unmarshal([]byte(body), &report))
	require.Equal(t, "ok", report.Status)
	require.Len(t, report.Components, 3)
	status, _ = get(t, url+"/livez")
	require.Equal(t, http.StatusOK, status)
	status, body = get(t, url+"/metrics")
	require.Equal(t, http.StatusOK, status)
	for _, line := range []string{
		`redrive_collector_collected_total{broker="queue",source="orders.billing_dlq"} 1`, `redrive_dlq_store_up 1`,
		`redrive_broker_up{broker="queue"} 1`,
		`redrive_dlq_stored_total{outcome="stored",reason="exhausted",topic="orders"} 1`, `go_goroutines`,
	} {
		require.Contains(t, body, line)
	}
	require.NotContains(t, body, "dlq_events_total", "older names are an option")

	var out, faults bytes.Buffer
	require.Equal(t, exitOK, run([]string{
		"dlq", "redrive", "--error", "bank", "--store", store, "--detach", "--yes", "--id", "night",
	}, strings.NewReader(""), &out, &faults), faults.String())
	select {
	case m := <-consumer:
		require.Equal(t, "order", string(m.Payload))
		require.Equal(t, "m-1", m.Metadata[envelope.KeyMessageID])
		m.Ack()
	case <-time.After(2 * time.Minute):
		require.Fail(t, "not redriven", stderr)
	}
	out.Reset()
	require.Equal(t, exitOK, run([]string{"runs", "watch", "night", "--store", store}, strings.NewReader(""), &out,
		&faults))
	require.Contains(t, out.String(), "run night: completed\n1 of 1 done: 1 succeeded")

	require.Equal(t, exitOK, stop(), stderr)
	require.Contains(t, stderr.String(), "stopped")
	_, err = os.Stat(store + "-spool")
	require.ErrorIs(t, err, os.ErrNotExist, "no spool: the broker keeps what the store does not take")
}

// The plan of a broker is a list of lines: people read it in the dashboard.
func TestServer_Topology(t *testing.T) {
	t.Parallel()
	cfg, err := config.Parse([]byte(`
store: {url: x.db}
brokers: {rabbit: {url: "amqp://h/"}, kafka: {url: "kafka://h:1"}, bus: {url: "kafka://h:1"}}
collector:
  sources:
    - {broker: rabbit, topic: orders_dlq, origin: {topic: orders, consumer: a queue}}
    - {broker: kafka, topic: orders.DLT, origin: {topic: orders, consumer: billing}}
    - {broker: kafka, topic: orders.mail.DLT, origin: {topic: orders, consumer: mail}}
    - {broker: bus, topic: orders.DLT, origin: {topic: orders}}
`))
	require.NoError(t, err)
	shown, err := (&server{cfg: cfg}).topology(t.Context())
	require.NoError(t, err)
	text, err := json.Marshal(shown)
	require.NoError(t, err)
	require.NotContains(t, string(text), `\n`)
	require.NotContains(t, string(text), config.DefaultGroup, "which is the collector's")
	views := shown.(map[string]any)["brokers"].([]brokerView)
	require.Len(t, views, 3)
	require.Contains(t, views[0].Problem, "origin.consumer of a source")
	for i, queues := range [][]string{1: {"orders.billing_dlq", "orders.mail_dlq"}, 2: {"orders", "orders_dlq"}} {
		for _, name := range queues {
			require.True(t, slices.ContainsFunc(views[i].Plan, func(line string) bool {
				return strings.Contains(line, " "+name+" ")
			}), "%s: %v", name, views[i].Plan)
		}
	}
}

func TestServe_Faults(t *testing.T) {
	hermetic(t)
	dir := t.TempDir()
	var listen net.ListenConfig
	taken, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, taken.Close()) }()
	for name, test := range map[string]struct {
		yaml, want string
		code       int
	}{
		"address taken": {
			fmt.Sprintf("store: {url: %s/a.db}\nserver: {address: %q}", dir, taken.Addr()),
			"address already in use", exitError,
		},
		"broker's parameters conflict": {
			fmt.Sprintf("store: {url: %s/b.db}\nbrokers: {r: {url: 'amqp://user:s3cret@127.0.0.1:1/?x-delivery-limit=1'}}", dir),
			"broker r: open amqp://user:xxxxx@127.0.0.1:1/: crash-limit ", exitError,
		},
		"open to the world": {
			fmt.Sprintf("store: {url: %s/c.db}\nserver: {address: '0.0.0.0:0'}", dir), "configure server.auth", exitUsage,
		},
		"no store":   {"log: {level: info}", "store.url: required", exitUsage},
		"bad config": {"stor: {}", `unknown field "stor"`, exitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "redrive.yaml")
			require.NoError(t, os.WriteFile(file, []byte(test.yaml), 0o600))
			var out, faults bytes.Buffer
			require.Equal(t, test.code, run([]string{"serve", "--config", file}, strings.NewReader(""), &out, &faults))
			require.Contains(t, faults.String(), test.want)
			require.NotContains(t, faults.String(), "s3cret")
		})
	}
}

// The time of --for begins when the demo runs: slow creation of the store does not use it up.
func TestDemo_For(t *testing.T) {
	hermetic(t)
	code, stdout, stderr := command(t, "demo", "--dir", t.TempDir(), "--address", anyPort, "--for", "1ns")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "In another terminal:")
}

// The demo's store has the name that a service's has by default.
func TestDemo_RefusesAStore(t *testing.T) {
	hermetic(t)
	dir := t.TempDir()
	seed(t, filepath.Join(dir, "dead-letters.db"))
	code, _, stderr := command(t, "demo", "--dir", dir, "--address", anyPort, "--for", "1ns")
	require.Equal(t, exitUsage, code, stderr)
	require.Contains(t, stderr, "dead-letters.db exists")
}

// The demo starts everything, prints the address, and ends on its own or when interrupted, with nothing left behind.
func TestDemo(t *testing.T) {
	hermetic(t)
	dir := t.TempDir()
	stdout, stderr, stop := start(t, "demo", "--dir", dir, "--address", anyPort, "--speed", "200")
	store := filepath.Join(dir, "dead-letters.db")
	url := served(t, stdout)
	require.Eventually(t, func() bool {
		_, body := get(t, url+"/readyz")
		return strings.Contains(body, `"collected"`)
	}, 2*time.Minute, 50*time.Millisecond, stderr)
	require.Contains(t, stdout.String(), url+"/readyz")

	// The suggested commands work in another terminal.
	var out, faults bytes.Buffer
	pasted := 0
	for line := range strings.Lines(stdout.String()) {
		line = strings.TrimSpace(line)
		if name, value, ok := strings.Cut(strings.TrimPrefix(line, "export "), "="); ok &&
			strings.HasPrefix(line, "export ") {
			t.Setenv(name, value)
		}
		command, ok := strings.CutPrefix(line, programName()+" ")
		if !ok {
			continue
		}
		pasted++
		args := strings.Fields(command)
		if command == "dlq tail" {
			args = append(args, "--follow=false")
		}
		code := run(args, strings.NewReader(""), &out, &faults)
		// The bank is down for a third of the time: the run stops, or ends with some that died again.
		if strings.HasPrefix(command, "dlq redrive") && code == exitPartial {
			require.Regexp(t, "to continue:     redrive runs resume mine|did not succeed: redrive runs show mine",
				faults.String())
			code = exitOK
		}
		require.Equal(t, exitOK, code, "%s\n%s", command, &faults)
	}
	require.Equal(t, 7, pasted)
	require.NotContains(t, out.String(), "order -?", "the orders of the history die of the same causes as those that come")
	require.NotContains(t, faults.String(), "without one, redrive runs resume", "the server continues what it approved")
	state := func(id, want string) {
		require.Eventually(t, func() bool {
			var shown bytes.Buffer
			return run([]string{"runs", "show", id}, strings.NewReader(""), &shown, io.Discard) == exitOK &&
				strings.HasPrefix(shown.String(), "run "+id+": "+want)
		}, 2*time.Minute, 50*time.Millisecond, "%s: %s", id, want)
	}
	state("without-a-card", "stopped")
	require.NotContains(t, out.String(), "not published", "the history of the first entry to look at")
	require.NotContains(t, stderr.String(), "level=WARN", "the shop reads before a run sends it anything")
	faults.Reset()
	require.Equal(t, exitPartial, run([]string{"runs", "watch", "without-a-card"}, strings.NewReader(""), &out, &faults))
	require.Contains(t, faults.String(), "to continue:     redrive runs resume without-a-card")
	t.Setenv("REDRIVE_SERVER", "")
	faults.Reset()
	require.Equal(t, exitOK, run([]string{
		"dlq", "redrive", "--error", "No carrier", "--store", store, "--detach", "--yes", "--id", "parcels",
	}, strings.NewReader(""), &out, &faults), faults.String())
	out.Reset()
	require.Equal(t, exitOK, run([]string{"runs", "watch", "parcels", "--store", store}, strings.NewReader(""), &out,
		&faults))
	require.Contains(t, out.String(), "run parcels: completed")
	require.Equal(t, exitOK, stop(), stderr)

	letters, err := dlq.Open(t.Context(), store, dlq.WithoutSpool())
	require.NoError(t, err)
	defer func() { require.NoError(t, letters.Close()) }()
	list, err := letters.Store().List(t.Context(), dlq.Filter{Topic: shippingTopic}, dlq.Page{})
	require.NoError(t, err)
	require.NotEmpty(t, list.Entries)
	require.Equal(t, "Shipping.NoCarrierException", list.Entries[0].ErrorClass)
}

// What serve refuses is invalid, for the same reason, without anything being opened or made.
func TestConfig_ValidateAsServe(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	code, _, stderr := command(t, "config", "validate")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "which file?")
	oidc := "server: {auth: {oidc: {issuer: 'https://login.example', client_id: x%s}}, public_url: '%s'}"
	for name, test := range map[string]struct{ more, want string }{
		"prefix":     {"server: {prefix: ops}", `redrive: server: Prefix "ops": a path such as /ops`},
		"origin":     {"server: {origins: [ops.example]}", "origin"},
		"login":      {fmt.Sprintf(oidc, "", "https://ops.example"), "role"},
		"public URL": {fmt.Sprintf(oidc, ", default_role: viewer", "/ops"), "URL"},
		"mem":        {"brokers: {m: {url: 'mem://'}}", "mem://"},
		"reason":     {"redrive: {rules: [{name: r, reason: bogus}]}", "bogus"},
		"rule":       {"redrive: {rules: [{name: r, topic: x, after: 2h, max_after: 1h}]}", "rule"},
		"good":       {fmt.Sprintf(oidc, ", default_role: viewer", "https://ops.example"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			file := fmt.Sprintf("{store: {url: dead.db}, %s}\n", test.more)
			require.NoError(t, os.WriteFile("redrive.yaml", []byte(file), 0o600))
			code, _, stderr := command(t, "config", "validate")
			require.NoFileExists(t, "dead.db")
			if test.want == "" {
				require.Equal(t, exitOK, code, stderr)
				return
			}
			require.Equal(t, exitUsage, code, stderr)
			require.Contains(t, stderr, test.want)
			if name == "rule" {
				return // serve checks it after it listens
			}
			code, _, served := command(t, "serve")
			require.Equal(t, exitUsage, code, served)
			require.Equal(t, stderr, served)
		})
	}
}
