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

// A reader of the README in an empty directory types its go get, the program and its go run. The output matches the
// README. Only the source of the library differs: this checkout, with the module cache of this test.
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
	var output string
	for _, line := range readme.typed() {
		switch args := strings.Fields(line); {
		case len(args) < 3 || args[0] != "go":
		case args[1] == "get":
			goCommand(t, dir, args[1:]...)
		case line == "go run .":
			output = goCommand(t, dir, args[1:]...)
		}
	}
	var want string
	for _, block := range readme.blocks("text") {
		if strings.HasPrefix(block, "order 4711") {
			want = block
		}
	}
	require.Equal(t, masked(want), masked(output))
}

// typed are the commands of a page, in their order and without their comments.
func (p page) typed() (lines []string) {
	for _, block := range p.blocks("console") {
		for line := range strings.Lines(block) {
			line, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "$ "), " #")
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// newModule is a reader's empty module, in which the library is that of this checkout.
func newModule(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	checkout, err := filepath.Abs(root)
	require.NoError(t, err)
	// a new module looks at more of it than the build of this one
	graph := exec.CommandContext(t.Context(), "go", "mod", "graph")
	graph.Dir = root
	require.NoError(t, graph.Run(), "go mod graph")
	goCommand(t, dir, "mod", "init", "example.com/shop")
	goCommand(t, dir, "mod", "edit", "-replace", "github.com/redrive-go/redrive="+checkout)
	return dir
}

// flags are those that this test was built with, whether they stand in the environment or in go env -w: with others,
// the reader's module finds nothing in the build cache, and compiles the library and all that it needs once more.
var flags = sync.OnceValue(func() string {
	out, _ := exec.CommandContext(context.Background(), "go", "env", "GOFLAGS").Output()
	return strings.TrimSpace(string(out))
})

// goCommand runs the go command without a network and returns what it prints: with the module cache alone, and without
// the checksum database. It changes go.mod and go.sum only where a reader's would. A test of a reader runs without vet,
// which would look through the sources of all that it imports: make lint does, with the same programs in examples.
func goCommand(t *testing.T, dir string, args ...string) string {
	t.Helper()
	var output bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &output, &output
	cmd.Env = append(os.Environ(), "GOFLAGS="+flags()+" -vet=off", "GOPROXY=off", "GOSUMDB=off", "GOWORK=off")
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
	lines := p.typed()
	var orders string
	for _, line := range lines {
		switch rest, runs := strings.CutPrefix(line, "go run . "); {
		case runs:
			orders = rest
			goCommand(t, dir, "build", "-ldflags=-s -w", "-o", "shop", ".")
		case strings.HasPrefix(line, "go get "):
			goCommand(t, dir, strings.Fields(line)[1:]...)
		case line == "go test .":
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
		if command, ok := strings.CutPrefix(line, "redrive "); ok && command != "serve" {
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
