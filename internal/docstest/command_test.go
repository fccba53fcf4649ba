package docstest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/config"
	"github.com/redrive-go/redrive/internal/logbuffer"
	"github.com/redrive-go/redrive/middleware"
)

// YAML blocks in these pages are configurations of the redrive command.
func TestDocs_ConfigurationsAreValid(t *testing.T) {
	seen := 0
	for _, p := range pages(t) {
		for _, block := range p.blocks("yaml") {
			if strings.HasPrefix(block, "profiles:") {
				continue // the file for --profile: cmd/redrive's TestDocs_Profiles reads it
			}
			path := filepath.Join(t.TempDir(), "redrive.yaml")
			require.NoError(t, os.WriteFile(path, []byte(block), 0o600))
			_, err := config.Load(path)
			require.NoError(t, err, p.path)
			seen++
		}
	}
	require.Positive(t, seen)
}

// The commands of a page run one after the other, on a store with the dead letters of a service that works again.
func TestDocs_RedriveCommandsRun(t *testing.T) {
	t.Parallel()
	program := built(t)
	seen := 0
	for _, p := range pages(t) {
		switch p.path {
		case "docs/runbook.md":
			continue // its commands are about an ID, a GROUP: TestRunbook_CommandsRun
		case "docs/migrate/dead-letter-table.md":
			continue // its commands are about a table in PostgreSQL: TestMove_DeadLetterTable
		}
		var commands []string
		for _, block := range p.blocks("console") {
			for line := range strings.Lines(block) {
				if command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ redrive "); ok {
					command, _, _ = strings.Cut(command, "  #")
					commands = append(commands, strings.TrimSpace(command))
				}
			}
		}
		seen += len(commands)
		if len(commands) > 0 {
			t.Run(p.path, func(t *testing.T) {
				t.Parallel()
				runCommands(t, program, commands)
			})
		}
	}
	require.Greater(t, seen, 20)
}

// build builds the command once for all tests, without debugging information, like a release: writing it takes longer
// than the rest of the link.
var build = sync.OnceValues(func() (string, error) {
	program := filepath.Join(scratch, "redrive")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-ldflags=-s -w", "-o", program,
		"./cmd/redrive")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return program, err
})

func built(t *testing.T) string {
	t.Helper()
	program, err := build()
	require.NoError(t, err)
	return program
}

func runCommands(t *testing.T, program string, commands []string) {
	t.Helper()
	s := newService(t)
	for _, command := range commands {
		s.run(t, program, command)
	}
}

// run runs a command as user ana in the service's directory, and returns its output. An endless command is interrupted
// after its first output.
func (s *service) run(t *testing.T, program, command string, more ...string) string {
	t.Helper()
	var output logbuffer.Buffer
	args := append(shellWords(command), more...)
	switch args[0] {
	case "demo": // ends on its own, on any port
		args = append(args, "--address", "127.0.0.1:0", "--for", "1s")
	case "doctor": // a machine that is busy with other tests answers late, which is no finding
		args = append(args, "--timeout", "2m")
	}
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, &output, &output
	cmd.Env = append(os.Environ(), "REDRIVE_ACTOR=ana", "REDRIVE_CONFIG=", "REDRIVE_STORE=", "REDRIVE_BROKER=",
		"REDRIVE_SERVER=", "REDRIVE_PROFILE=")
	require.NoError(t, cmd.Start())
	shown := ""
	switch {
	case args[0] == "serve":
		shown = "serving"
	case args[0] == "dlq" && args[1] == "tail":
		shown = "orders"
	}
	if shown != "" {
		require.Eventually(t, func() bool { return strings.Contains(output.String(), shown) }, 2*time.Minute,
			10*time.Millisecond, &output)
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
	}
	err := cmd.Wait()
	switch cmd.ProcessState.ExitCode() {
	case interrupted, partly: // tail was ended here; a run that had stopped was for some of it
		require.Contains(t, []string{"tail", "resume"}, args[1], &output)
		err = nil
	}
	require.NoError(t, err, "redrive %s\n%s", command, &output)
	require.NotEmpty(t, output.String(), command)
	return output.String()
}

// Exit codes of a command that was interrupted, and of one that did only part of its work.
const (
	interrupted = 130
	partly      = 4
)

// shellWords splits a command; quotes keep words together.
func shellWords(command string) []string {
	var words []string
	for i, part := range strings.Split(command, "'") {
		if i%2 == 1 {
			words = append(words, part)
			continue
		}
		words = append(words, strings.Fields(part)...)
	}
	return words
}

// service is a service with dead letters that works again: what is redriven succeeds. Its store, its queue and the
// command's configuration are in one directory.
type service struct {
	dir     string
	letters *dlq.Letters
	broker  brokers.Broker
	broken  atomic.Bool // it fails again
}

func newService(t *testing.T) *service {
	t.Helper()
	s := &service{dir: t.TempDir()}
	var err error
	s.letters, err = dlq.Open(t.Context(), "sqlite:"+filepath.Join(s.dir, "dead.db")+
		"?synchronous=normal&busy-timeout=30s", dlq.WithoutSpool())
	require.NoError(t, err)
	s.broker, err = brokers.Open(t.Context(), "sqlite:"+filepath.Join(s.dir, "queue.db"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "redrive.yaml"), []byte(`
store: {url: "sqlite:dead.db"}
brokers: {queue: {url: "sqlite:queue.db"}}
collector: {sources: [{broker: queue, topic: other_dlq}]}
server: {address: "127.0.0.1:0"}
`), 0o600))
	for n := 1; n <= 8; n++ {
		m := message.NewMessage(fmt.Sprintf("message-%d", n), fmt.Appendf(nil, `{"order":%d,"total":%d}`, n, 100*n))
		m.Metadata[envelope.KeyMessageID] = m.UUID
		text := "bank: connection refused"
		if n == 3 {
			text = "order 3 has no customer"
		}
		_, err := s.letters.Store().Put(t.Context(), dlq.NewEntry(&envelope.DeadLetter{
			Message: m, Reason: envelope.ReasonExhausted, Err: envelope.Error{Message: text}, Class: "*bank.Error",
			Handler: "pay",
			Origin:  envelope.Origin{Broker: "sqlite", Topic: "orders", Consumer: "billing"}, Attempts: 4, At: time.Now(),
		}))
		require.NoError(t, err)
	}
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: s.broker, DeadLetters: s.letters, MaxAttempts: 1,
	})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("pay", "orders", s.broker.Subscriber(brokers.WithGroup("billing")),
		func(*message.Message) error {
			if s.broken.Load() {
				return errNoStock
			}
			return nil
		})
	background(t, func(ctx context.Context) error { return router.Run(ctx) }, s.broker.Close, s.letters.Close)
	<-router.Running()
	return s
}

// background runs something until the test ends, and then closes what it needed.
func background(t *testing.T, work func(context.Context) error, closing ...func() error) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			require.NoError(t, err)
		}
		for _, c := range closing {
			require.NoError(t, c())
		}
	})
}
