package redrive_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// redrive serve redrives dead letters from PostgreSQL to RabbitMQ, and is repeatedly killed with SIGKILL and restarted
// meanwhile: every message reaches its consumer once, and every outcome is reported by the consumer. There are 100,000
// letters, which take 45 s on two cores; fewer with -short or REDRIVE_RUN_LETTERS.
func TestServe_Killed(t *testing.T) {
	t.Parallel()
	letters, kills := 100_000, 3
	if testing.Short() {
		letters = 10_000
	}
	if text := os.Getenv("REDRIVE_RUN_LETTERS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		letters = n
	}
	store, broker := services.SharedPostgres(t).Database(t), services.SharedRabbitMQ(t).VHost(t)
	l, b := openFilled(t, store, broker, letters)

	var mu sync.Mutex
	delivered := make(map[string]int, letters)
	serve(t, b, l, func(m *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		delivered[m.Metadata[envelope.KeyMessageID]]++
		return nil
	})
	s := newProgram(t, store, broker, "")
	s.start(t)
	out := s.command(t, "dlq", "redrive", "--topic", topic, "--id", "killed", "--max-out", "3000", "--detach", "--yes")
	require.Contains(t, out, "run killed")
	began := time.Now()
	runner, err := redrive.NewRunner(l.Manager(nil), redrive.Config{})
	require.NoError(t, err)
	for n := range kills {
		await.Progress(t, func() (int, bool) {
			mu.Lock()
			have := len(delivered)
			mu.Unlock()
			require.Empty(t, s.ended, "the server ended unexpectedly:\n%v", s.log)
			return have, have >= (n+1)*letters/(kills+1)
		}, "nothing is redriven any more; the run: %v", state{t, runner, "killed"})
		require.NoError(t, s.cmd.Process.Kill())
		require.Error(t, <-s.ended, "it was killed")
		s.start(t)
	}
	var run *redrive.Run
	for run, err = range runner.WatchRun(t.Context(), "killed", 100*time.Millisecond) {
		require.NoError(t, err)
	}
	took := time.Since(began)
	require.Equal(t, redrive.Completed, run.State)
	require.Equal(t, redrive.Counts{Succeeded: int64(letters)}, run.Counts)
	resolved, err := l.Manager(nil).Count(t.Context(), dlq.Filter{Statuses: []dlq.Status{dlq.Resolved}}, 0)
	require.NoError(t, err)
	require.Equal(t, int64(letters), resolved)
	require.NoError(t, s.cmd.Process.Signal(os.Interrupt))
	require.NoError(t, <-s.ended, s.log.String())

	mu.Lock()
	defer mu.Unlock()
	require.Len(t, delivered, letters, "every message is redriven")
	for id, n := range delivered {
		require.Equal(t, 1, n, "%s was delivered %d times", id, n)
	}
	t.Logf("%d messages in %s, including %d kills", letters, took.Round(time.Millisecond), kills)
}

// state shows the state of a run when it is printed.
type state struct {
	t      *testing.T
	runner *redrive.Runner
	id     string
}

func (s state) String() string {
	run, err := s.runner.Run(s.t.Context(), s.id)
	return fmt.Sprintf("%+v, %v", run, err)
}

// program is the built command and its server.
type program struct {
	path, config, address string

	cmd   *exec.Cmd
	log   *bytes.Buffer // may be read once it has ended
	ended chan error
}

// newProgram configures a server whose claims last half a minute: the consumer must not be further behind than that,
// otherwise a message that a killed process did not record is sent twice. The settings continue those of redrive.
func newProgram(t *testing.T, store, broker, settings string) *program {
	t.Helper()
	p := &program{
		path: services.Program(t, "./cmd/redrive"), config: filepath.Join(t.TempDir(), "redrive.yaml"),
		address: net.JoinHostPort("127.0.0.1", strconv.Itoa(services.FreePorts(t, 1)[0])),
	}
	text := fmt.Sprintf("store: {url: %q}\nbrokers:\n  rabbit: {url: %q}\nserver: {address: %q}\n"+
		"redrive:\n  publish_timeout: 15s\n  run_lease: 10s\n%s",
		store, broker, p.address, settings)
	require.NoError(t, os.WriteFile(p.config, []byte(text), 0o600))
	return p
}

// start starts redrive serve, and returns once it is ready.
func (p *program) start(t *testing.T) {
	t.Helper()
	p.log, p.ended = &bytes.Buffer{}, make(chan error, 1)
	p.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), p.path, "serve", "--config", p.config)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	require.NoError(t, p.cmd.Start())
	cmd, ended := p.cmd, p.ended
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // already ended, unless the test has failed
	await.True(t, func() bool { return p.ready(t) })
}

// ready reports whether the server answers that it is ready.
func (p *program) ready(t *testing.T) bool {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.address+"/readyz", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	return err == nil && response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

// command runs a command and returns its output.
func (p *program) command(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), p.path, append(args, "--config", p.config)...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}
