// Package command_test runs the built redrive command against real servers.
package command_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/services"
)

func TestMain(m *testing.M) { services.Main(m) }

// result is the result of a command.
type result struct {
	code           int
	stdout, stderr string
}

// redrive runs the command with a configuration.
func redrive(t *testing.T, config string, args ...string) result {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "redrive.yaml")
	require.NoError(t, os.WriteFile(path, []byte(config), 0o600))
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), services.Program(t, "./cmd/redrive"), append(args, "--config", path)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &stdout, &stderr
	cmd.Env = append(os.Environ(), "REDRIVE_ACTOR=ana", "REDRIVE_STORE=", "REDRIVE_BROKER=")
	err := cmd.Run()
	exit, exited := errors.AsType[*exec.ExitError](err)
	if err != nil && !exited {
		require.NoError(t, err)
	}
	code := 0
	if exited {
		code = exit.ExitCode()
	}
	return result{code, stdout.String(), stderr.String()}
}

// finding is a line of redrive doctor.
type finding struct{ What, Severity, Finding, Remedy string }

func diagnose(t *testing.T, config string, flags ...string) (int, map[string]finding) {
	t.Helper()
	r := redrive(t, config, append([]string{"doctor", "--timeout", "2m", "-o", "json"}, flags...)...)
	var list []finding
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &list), "%s%s", r.stdout, r.stderr)
	found := map[string]finding{}
	for _, f := range list {
		if found[f.What].Severity != "problem" && found[f.What].Severity != "warning" {
			found[f.What] = f
		}
		if f.Severity != "ok" {
			require.NotEmpty(t, f.Remedy, "every finding has its remedy: %v", f)
		}
	}
	return r.code, found
}

// declare declares the given queues.
func declare(t *testing.T, broker string, queues map[string]amqp.Table) {
	t.Helper()
	conn, err := amqp.Dial(broker)
	require.NoError(t, err)
	defer conn.Close()
	ch, err := conn.Channel()
	require.NoError(t, err)
	for name, args := range queues {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		require.NoError(t, err)
	}
}

func withPassword(t *testing.T, broker, password string) string {
	t.Helper()
	u, err := url.Parse(broker)
	require.NoError(t, err)
	u.User = url.UserPassword(u.User.Username(), password)
	return u.String()
}

// configOf names a store and brokers, and the sources to collect as broker/topic.
func configOf(store string, brokers map[string]string, sources ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "store: {url: %q}\nbrokers:\n", store)
	for name, broker := range brokers {
		fmt.Fprintf(&b, "  %s: {url: %q, group: billing}\n", name, broker)
	}
	b.WriteString("collector:\n  sources:\n")
	for _, source := range sources {
		broker, topic, _ := strings.Cut(source, "/")
		fmt.Fprintf(&b, "    - {broker: %s, topic: %q}\n", broker, topic)
	}
	return b.String()
}
