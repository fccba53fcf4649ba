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

// masked returns output without the parts that differ between runs.
func masked(output string) string {
	return uuid.ReplaceAllString(when.ReplaceAllString(output, "TIME"), "ID")
}

// In an empty directory, the go get, the program and the go run of the README print what the README shows. Only the
// source of the library differs: it is this checkout, with the module cache of this test.
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

// typed returns the commands of a page in order, without their comments.
func (p page) typed() (lines []string) {
	for _, block := range p.blocks("console") {
		for line := range strings.Lines(block) {
			line, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "$ "), " #")
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// newModule makes a reader's empty module, which uses the library of this checkout.
func newModule(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	checkout, err := filepath.Abs(root)
	require.NoError(t, err)
	// a new module needs more of the module graph than the build of this one
	graph := exec.CommandContext(t.Context(), "go", "mod", "graph")
	graph.Dir = root
	require.NoError(t, graph.Run(), "go mod graph")
	goCommand(t, dir, "mod", "init", "example.com/shop")
	goCommand(t, dir, "mod", "edit", "-replace", "github.com/redrive-go/redrive="+checkout)
	return dir
}

// flags returns the GOFLAGS of this test, from the environment or go env -w. With others, the reader's module would
// find nothing in the build cache, and compile the library and its dependencies again.
var flags = sync.OnceValue(func() string {
	out, _ := exec.CommandContext(context.Background(), "go", "env", "GOFLAGS").Output()
	return strings.TrimSpace(string(out))
})

// goCommand runs the go command without a network, from the module cache and without the checksum database, and returns
// its output. It changes go.mod and go.sum only where a reader's command would. The reader's tests run without vet,
// which would check all that they import; make lint vets the same programs in examples.
func goCommand(t *testing.T, dir string, args ...string) string {
	t.Helper()
	var output bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &output, &output
	cmd.Env = append(os.Environ(), "GOFLAGS="+flags()+" -vet=off", "GOPROXY=off", "GOSUMDB=off", "GOWORK=off")
	require.NoError(t, cmd.Run(), "go %s\n%s", strings.Join(args, " "), &output)
	return output.String()
}

// docs/getting-started.md works in an empty directory: the service, its test and its dead letters, one of which is
// corrected and then handled by the running service.
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
