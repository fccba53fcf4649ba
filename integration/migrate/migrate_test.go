// Package migrate_test follows the guides in docs/migrate literally: a client like the original system's creates its
// topology and messages, and the program of the guide is started with the URL of the guide alongside the old consumer.
// Going back is tested as well.
package migrate_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := services.CloseShared(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// pika returns the interpreter of a private environment with the client.
var pika = sync.OnceValues(func() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "redrive-integration", "pika-1.3.2")
	python := filepath.Join(dir, "bin", "python")
	ready := func() bool {
		return exec.CommandContext(context.Background(), python, "-c", "import pika").Run() == nil
	}
	if ready() {
		return python, nil
	}
	for _, command := range [][]string{
		{"python3", "-m", "venv", dir},
		{python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pika==1.3.2"},
	} {
		if out, err := exec.CommandContext(context.Background(), command[0], command[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, out)
		}
	}
	return python, nil
})

// move is the migration of one system.
type move struct {
	t      *testing.T
	name   string // of the guide, the program and the seed
	python string
	vhost  string // URL
	binary string // of the guide's program, once it is built

	mu      sync.Mutex
	handled map[int]string // by consumer
	output  strings.Builder
}

func begin(t *testing.T, name string) *move {
	t.Helper()
	python, err := pika()
	if err != nil {
		if os.Getenv("REQUIRE_SERVICES") == "1" {
			t.Fatalf("pika is required (REQUIRE_SERVICES=1): %v", err)
		}
		t.Skipf("pika cannot be installed: %v", err)
	}
	m := &move{t: t, name: name, python: python, vhost: services.SharedRabbitMQ(t).VHost(t), handled: map[int]string{}}
	m.seed("declare")
	return m
}

// seed runs the original system's client.
func (m *move) seed(args ...string) {
	m.t.Helper()
	all := append([]string{"testdata/seed.py", m.vhost, m.name}, args...)
	out, err := exec.CommandContext(m.t.Context(), m.python, all...).CombinedOutput()
	require.NoError(m.t, err, string(out))
}

func (m *move) publish(from, to int) { m.seed("publish", strconv.Itoa(from), strconv.Itoa(to)) }

// start runs a consumer until the returned function is called. It returns once the consumer has started consuming.
func (m *move) start(who, ready string, command *exec.Cmd) (stop func()) {
	m.t.Helper()
	read, write := io.Pipe()
	command.Stdout, command.Stderr = write, write
	require.NoError(m.t, command.Start())
	began := make(chan struct{})
	var once sync.Once
	go func() {
		lines := bufio.NewScanner(read)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if strings.Contains(lines.Text(), ready) {
				once.Do(func() { close(began) })
			}
			m.note(who, lines.Text())
		}
	}()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait() // it was signaled to stop
		_ = write.Close()  // of a pipe
	}()
	stop = sync.OnceFunc(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		<-ended
	})
	m.t.Cleanup(stop)
	await.True(m.t, func() bool {
		select {
		case <-began:
			return true
		default:
			return false
		}
	}, "%s did not start: %s", who, m.said())
	return stop
}

var handledLine = regexp.MustCompile(`handled (\d+)$`)

func (m *move) note(who, line string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.output.WriteString(who + ": " + line + "\n")
	if found := handledLine.FindStringSubmatch(line); found != nil {
		id, _ := strconv.Atoi(found[1])
		m.handled[id] = who
	}
}

func (m *move) said() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.output.String()
}

func (m *move) old() (stop func()) {
	seed := exec.CommandContext(context.Background(), m.python, "testdata/seed.py", m.vhost, m.name, "consume")
	return m.start("old", "ready", seed)
}

// pageURL matches the query of the URL in the guide.
var pageURL = regexp.MustCompile(`BROKER_URL='?amqp://[^?\s']*(\?[^\s']*)`)

func (m *move) program() (stop func()) {
	m.t.Helper()
	page, err := os.ReadFile(filepath.Join("../../docs/migrate", m.name+".md"))
	require.NoError(m.t, err)
	query := pageURL.FindSubmatch(page)
	require.NotNil(m.t, query, "the guide names no URL")
	if m.binary == "" {
		m.binary = filepath.Join(m.t.TempDir(), m.name)
		build := exec.CommandContext(m.t.Context(), "go", "build", "-o", m.binary, "./examples/migrate/"+m.name)
		build.Dir = "../.."
		out, err := build.CombinedOutput()
		require.NoError(m.t, err, string(out))
	}
	command := exec.CommandContext(context.Background(), m.binary)
	command.Env = append(os.Environ(), "BROKER_URL="+m.vhost+string(query[1]), "AMQP_MICROSERVICE_NAME=invoice-service")
	return m.start("new", "Starting handler", command)
}

// balanced waits until every message below n was handled exactly once, or is in the dead letter queue if its consumers
// cannot handle it, and until all other queues are empty.
func (m *move) balanced(n int, dead string, empty ...string) {
	m.t.Helper()
	conn, err := amqp.Dial(m.vhost)
	require.NoError(m.t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(m.t, err)
	depth := func(queue string) int {
		q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		require.NoError(m.t, err, queue)
		return q.Messages
	}
	bad := (n + 4) / 5
	await.Progress(m.t, func() (far [3]int, done bool) {
		m.mu.Lock()
		far[0] = len(m.handled)
		m.mu.Unlock()
		far[1] = depth(dead)
		for _, queue := range empty {
			far[2] += depth(queue)
		}
		return far, far == [3]int{n - bad, bad}
	}, "of %d: %d dead\n%s", n, depth(dead), m.said())
	ids := map[string]bool{}
	for range bad {
		d, ok, err := ch.Get(dead, false)
		require.NoError(m.t, err)
		require.True(m.t, ok)
		ids[idOf(m.t, d.Body)] = true
	}
	for i := range n {
		m.mu.Lock()
		_, handled := m.handled[i]
		m.mu.Unlock()
		require.Equal(m.t, i%5 != 0, handled, i)
		require.Equal(m.t, i%5 == 0, ids[strconv.Itoa(i)], i)
	}
}

// idOf returns the number in a message body of any of the systems.
func idOf(t *testing.T, body []byte) string {
	t.Helper()
	var b struct {
		ID   string `json:"id"`
		Data struct {
			ID string `json:"order_id"`
		} `json:"data"`
	}
	require.NoError(t, json.Unmarshal(body, &b), string(body))
	return b.ID + b.Data.ID
}

func (m *move) by(who string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.handled {
		if w == who {
			n++
		}
	}
	return n
}

// sideBySide tests the migration and going back: messages are waiting, the old consumer reads, the new one joins it,
// then runs alone, and then the old one does.
func (m *move) sideBySide(dead string, empty ...string) {
	m.t.Helper()
	m.publish(0, 20)
	stopOld := m.old()
	stopNew := m.program()
	m.publish(20, 60)
	m.balanced(60, dead, empty...)
	require.Positive(m.t, m.by("old"))
	stopOld()
	before := m.by("new")
	m.publish(60, 70)
	m.balanced(70, dead, empty...)
	require.Equal(m.t, before+8, m.by("new"))
	m.publish(70, 80)
	stopNew() // with messages that wait for a retry
	m.old()
	m.publish(80, 100)
	m.balanced(100, dead, empty...)
	require.NotContains(m.t, m.said(), "untyped")
}

func TestMove_Laravel(t *testing.T) {
	t.Parallel()
	m := begin(t, "laravel")
	m.jobs()
	m.sideBySide("orders_dlq", "orders", "orders_retry", "orders_wait")
}

// jobs lets the program read jobs of Laravel's own queue driver: plain data is handled, and a serialized object is
// dead-lettered with that reason and its exact bytes, for a worker that can read it.
func (m *move) jobs() {
	m.t.Helper()
	m.seed("jobs")
	stop := m.program()
	conn, err := amqp.Dial(m.vhost)
	require.NoError(m.t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(m.t, err)
	var dead amqp.Delivery
	await.True(m.t, func() (ok bool) {
		dead, ok, err = ch.Get("orders_dlq", true)
		require.NoError(m.t, err)
		return ok
	}, "%s", m.said())
	require.Contains(m.t, string(dead.Body), `"command": "O:18:`)
	require.Contains(m.t, dead.Headers[envelope.KeyErrorMessage],
		"malformed structured body: a job of Laravel's own queue")
	await.True(m.t, func() bool { return m.by("new") == 1 }, "%s", m.said())
	stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	require.Equal(m.t, "new", m.handled[901])
	delete(m.handled, 901)
}

func TestMove_TTLCycle(t *testing.T) {
	t.Parallel()
	const queue = "sgp.fechamento.reabertura.notificacao.dre"
	m := begin(t, "ttl-cycle")
	m.sideBySide(queue+".limbu", queue, queue+".deadletter")
}

func TestMove_DelayedBackoff(t *testing.T) {
	t.Parallel()
	m := begin(t, "delayed-backoff")
	m.sideBySide("order-reminder-dlq", "order-reminder", "order-reminder-delayed-queue")
}

func TestMove_ServiceBus(t *testing.T) {
	t.Parallel()
	m := begin(t, "service-bus")
	const queue = "easyweek.invoice-service"
	m.sideBySide(queue+".failed", queue, queue+".retry.1000", queue+".retry.5000")
}
