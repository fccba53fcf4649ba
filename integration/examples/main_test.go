// Package examples_test runs the example programs against real brokers and databases: their output must be the same as
// in memory.
package examples_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/natsserver"
	"github.com/redrive-go/redrive/integration/services"
)

// built is the directory in which the programs are built, once for all tests.
var built struct {
	sync.Mutex
	dir string
}

func TestMain(m *testing.M) {
	natsserver.Main()
	code := m.Run()
	if err := errors.Join(services.CloseShared(), os.RemoveAll(built.dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// program builds ./examples/<name> of the root module once, and returns the binary's path.
func program(t *testing.T, name string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if built.dir == "" {
		var err error
		built.dir, err = os.MkdirTemp("", "redrive-examples-") //nolint:usetesting // must outlive each test
		require.NoError(t, err)
	}
	path := filepath.Join(built.dir, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	const tags = "amqp,kafka,nats,postgres,mysql,watermill"
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", tags, "-o", path, "./examples/"+name)
	build.Dir = filepath.Join("..", "..")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

type result struct {
	code           int
	stdout, stderr string
}

// run runs an example in an empty directory with BROKER_URL and DLQ_URL, and kills it when the test times out.
func run(t *testing.T, name, brokerURL, dlqURL string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program(t, name), args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "BROKER_URL="+brokerURL, "DLQ_URL="+dlqURL)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(""), &stdout, &stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return result{exit.ExitCode(), stdout.String(), stderr.String()}
	}
	require.NoError(t, err)
	return result{0, stdout.String(), stderr.String()}
}

// sqliteFile returns the URL of a database that does not exist yet.
func sqliteFile(t *testing.T) string {
	t.Helper()
	return "sqlite:" + filepath.Join(t.TempDir(), "dead.db")
}
