package docs_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/config"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// YAML in these pages is a configuration of the redrive command.
func TestDocs_ConfigurationsAreValid(t *testing.T) {
	seen := 0
	for _, p := range pages(t) {
		for _, block := range p.blocks("yaml") {
			path := filepath.Join(t.TempDir(), "redrive.yaml")
			require.NoError(t, os.WriteFile(path, []byte(block), 0o600))
			_, err := config.Load(path)
			require.NoError(t, err, p.path)
			seen++
		}
	}
	require.Positive(t, seen)
}

// The commands of a page run, one after the other, on a store with dead letters of a service that has been repaired.
func TestDocs_RedriveCommandsRun(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "redrive")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/redrive")
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	seen := 0
	for _, p := range pages(t) {
		if p.path == "docs/runbook.md" {
			continue // its commands are about an ID, a GROUP: cmd/redrive parses them
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
		if len(commands) > 0 && p.path != "docs/runbook.md" { // its commands name what an alert names; its own test reads them
			t.Run(p.path, func(t *testing.T) {
				t.Parallel()
				runCommands(t, program, commands)
			})
		}
	}
	require.Greater(t, seen, 20)
}

// logBuffer can be read while a program writes it.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func runCommands(t *testing.T, program string, commands []string) {
	t.Helper()
	dir := t.TempDir()
	repaired(t, filepath.Join(dir, "dead.db"), filepath.Join(dir, "queue.db"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "redrive.yaml"), []byte(`
store: {url: "sqlite:dead.db"}
brokers: {queue: {url: "sqlite:queue.db"}}
collector: {sources: [{broker: queue, topic: other_dlq}]}
server: {address: "127.0.0.1:0"}
`), 0o600))
	for _, command := range commands {
		var output logBuffer
		args := shellWords(command)
		if args[0] == "demo" { // ends by itself, on any port
			args = append(args, "--address", "127.0.0.1:0", "--for", "1s")
		}
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &output, &output
		cmd.Env = append(os.Environ(), "REDRIVE_ACTOR=ana", "REDRIVE_CONFIG=", "REDRIVE_STORE=", "REDRIVE_BROKER=", "REDRIVE_SERVER=", "REDRIVE_PROFILE=")
		require.NoError(t, cmd.Start())
		if args[0] == "serve" {
			require.Eventually(t, func() bool { return strings.Contains(output.String(), "serving") }, 30*time.Second, 10*time.Millisecond, &output)
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
		}
		require.NoError(t, cmd.Wait(), "redrive %s\n%s", command, &output)
		require.NotEmpty(t, output.String(), command)
	}
}

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

// repaired stores dead letters of a service, and runs it so that what comes back succeeds.
func repaired(t *testing.T, store, queue string) {
	t.Helper()
	letters, err := dlq.Open(t.Context(), "sqlite:"+store+"?synchronous=normal&busy_timeout=30s", dlq.WithoutSpool())
	require.NoError(t, err)
	broker, err := brokers.Open(t.Context(), "sqlite:"+queue)
	require.NoError(t, err)
	for n := 1; n <= 8; n++ {
		m := message.NewMessage(fmt.Sprintf("message-%d", n), fmt.Appendf(nil, `{"order":%d,"total":%d}`, n, 100*n))
		m.Metadata[envelope.KeyMessageID] = m.UUID
		text := "bank: connection refused"
		if n == 3 {
			text = "order 3 has no customer"
		}
		_, err := letters.Store().Put(t.Context(), dlq.NewEntry(&envelope.DeadLetter{
			Message: m, Reason: envelope.ReasonExhausted, Err: envelope.Error{Message: text}, Class: "*bank.Error", Handler: "pay",
			Origin: envelope.Origin{Broker: "sqlite", Topic: "orders", Consumer: "billing"}, Attempts: 4, At: time.Now(),
		}))
		require.NoError(t, err)
	}
	pipeline, err := middleware.New(middleware.Config{Rescheduler: broker, DeadLetters: letters})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("pay", "orders", broker.Subscriber(brokers.WithGroup("billing")), func(*message.Message) error { return nil })
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- router.Run(ctx) }()
	<-router.Running()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
		require.NoError(t, broker.Close())
		require.NoError(t, letters.Close())
	})
}
