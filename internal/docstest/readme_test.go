package docstest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/internal/logbuffer"
)

var (
	when = regexp.MustCompile(`\d{4}/\d\d/\d\d \d\d:\d\d:\d\d`)
	uuid = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
)

// masked is output without what differs from run to run.
func masked(output string) string {
	return uuid.ReplaceAllString(when.ReplaceAllString(output, "TIME"), "ID")
}

// A reader of the README in an empty directory: go mod init, go get, the program, go run. What it prints is what stands
// there. Only where the library comes from is not as for a reader: from this checkout, with the module cache that this
// test was built from.
func TestREADME_Program(t *testing.T) {
	t.Parallel()
	readme := pages(t)[0]
	var program string
	for _, block := range readme.blocks("go") {
		if strings.HasPrefix(block, "package main\n") {
			program = block
		}
	}
	require.NotEmpty(t, program)
	dir := newModule(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o600))
	output := goCommand(t, dir, "run", ".")
	var want string
	for _, block := range readme.blocks("text") {
		if strings.HasPrefix(block, "order 4711") {
			want = block
		}
	}
	require.Equal(t, masked(want), masked(output))
}

// newModule is a reader's module in an empty directory, which requires the library as it is in this checkout.
func newModule(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	checkout, err := filepath.Abs(root)
	require.NoError(t, err)
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	require.NoError(t, err)
	// a new module looks at more of it than the build of this one
	graph := exec.CommandContext(t.Context(), "go", "mod", "graph")
	graph.Dir = root
	require.NoError(t, graph.Run(), "go mod graph")
	goCommand(t, dir, "mod", "init", "example.com/shop")
	// what go get asks the checksum database for
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600))
	goCommand(t, dir, "mod", "edit", "-replace", "github.com/redrive-go/redrive="+checkout)
	goCommand(t, dir, "get", "github.com/redrive-go/redrive")
	return dir
}

// flags are those that this test was built with, whether they stand in the environment or in go env -w: with others,
// the reader's module finds nothing in the build cache, and compiles the library and all that it needs once more.
var flags = sync.OnceValue(func() string {
	out, _ := exec.CommandContext(context.Background(), "go", "env", "GOFLAGS").Output()
	return strings.TrimSpace(string(out))
})

// goCommand runs the go command without a network and returns what it prints. A test of a reader runs without vet,
// which would look through the sources of all that it imports: make lint does, with the same programs in examples.
func goCommand(t *testing.T, dir string, args ...string) string {
	t.Helper()
	var output bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &output, &output
	cmd.Env = append(os.Environ(), "GOFLAGS="+flags()+" -mod=mod -vet=off", "GOPROXY=off", "GOWORK=off")
	require.NoError(t, cmd.Run(), "go %s\n%s", strings.Join(args, " "), &output)
	return output.String()
}

// The ten minutes of docs/getting-started.md, in an empty directory: the service, its test, its dead letters, one of
// which is corrected and confirmed by the running service.
func TestGettingStarted(t *testing.T) {
	t.Parallel()
	var p page
	for _, p = range pages(t) {
		if p.path == "docs/getting-started.md" {
			break
		}
	}
	dir := newModule(t)
	for i, name := range []string{"main.go", "main_test.go"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(p.blocks("go")[i]), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "redrive.yaml"), []byte(p.blocks("yaml")[0]), 0o600))
	var lines []string
	for _, block := range p.blocks("console") {
		lines = append(lines, strings.Split(strings.TrimSpace(block), "\n")...)
	}
	goCommand(t, dir, "build", "-ldflags=-s -w", "-o", "shop", ".")
	var orders string
	for _, line := range lines {
		if rest, ok := strings.CutPrefix(line, "$ go run . "); ok {
			orders = rest
		}
		if line == "$ go test ." {
			require.Contains(t, goCommand(t, dir, "test", "."), "ok")
		}
	}
	require.NotEmpty(t, orders)

	var printed logbuffer.Buffer
	shop := exec.CommandContext(t.Context(), "./shop", shellWords(orders)...)
	shop.Dir, shop.Stdout, shop.Stderr = dir, &printed, &printed
	require.NoError(t, shop.Start())
	says := func(text string) {
		require.Eventually(t, func() bool { return strings.Contains(printed.String(), text) }, 2*time.Minute,
			10*time.Millisecond, &printed)
	}
	says("to ana@example.com: We have your order 4711")
	says("no e-mail address")
	says("invalid character")

	operator := service{dir: dir}
	for _, line := range lines {
		if command, ok := strings.CutPrefix(line, "$ redrive "); ok && command != "serve" {
			output := operator.run(t, built(t), command)
			if command == "dlq list" {
				require.Contains(t, output, "no e-mail address")
				require.Contains(t, output, "invalid character")
			}
		}
	}
	says("to ben@example.com: We have your order 4712")
	require.NoError(t, shop.Process.Signal(os.Interrupt))
	require.NoError(t, shop.Wait(), &printed)
}
