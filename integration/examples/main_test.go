// Package examples_test runs the example programs against real brokers and databases: their output must be the same as
// in memory.
package examples_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
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
	if err := flag.Set("test.parallel", "4"); err != nil { // the programs mostly wait
		panic(err)
	}
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

// urls are what the examples read from BROKER_URL, DLQ_URL and REDRIVE_DELAYS_URL.
type urls struct{ broker, letters, delays string }

// run runs an example in an empty directory, and kills it when the test times out.
func run(t *testing.T, name string, with urls, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program(t, name), args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(),
		"BROKER_URL="+patient(with.broker), "DLQ_URL="+with.letters, "REDRIVE_DELAYS_URL="+with.delays)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(""), &stdout, &stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return result{exit.ExitCode(), stdout.String(), stderr.String()}
	}
	require.NoError(t, err)
	return result{0, stdout.String(), stderr.String()}
}

// patient returns a broker's URL with more than the default of 10 s for a publish: the machine may be busy.
func patient(broker string) string {
	separator := "?"
	if strings.Contains(broker, "?") {
		separator = "&"
	}
	return broker + separator + "x-publish-timeout=" + await.Patience.String()
}

// kafkaServer is used by one test at a time, because the examples' topics and groups have the same names in every run.
type kafkaServer struct {
	sync.Mutex
	server func(t testing.TB) *services.KafkaServer
}

var sharedKafka = &kafkaServer{server: services.SharedKafka}

// forTest returns the server, which belongs to the test until it ends.
func (k *kafkaServer) forTest(t testing.TB) *services.KafkaServer {
	t.Helper()
	k.Lock()
	t.Cleanup(k.Unlock)
	return k.server(t)
}

// sqliteFile returns the URL of a database that does not exist yet.
func sqliteFile(t *testing.T) string {
	t.Helper()
	return "sqlite:" + filepath.Join(t.TempDir(), "dead.db")
}
