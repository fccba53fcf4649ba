package services

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// programs are the binaries that this process has built for tests.
var programs struct {
	sync.Mutex
	dir  string
	done map[string]string
}

// Program builds a main package of the root module, ./cmd/redrive for example, once for all tests of the process, and
// returns the path of the binary. Tests run two directories below the root of the repository.
func Program(t testing.TB, pkg string) string {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	if path := programs.done[pkg]; path != "" {
		return path
	}
	if programs.dir == "" {
		dir, err := os.MkdirTemp("", "redrive-programs-") //nolint:usetesting // must outlive each test
		Need(t, err)
		programs.dir, programs.done = dir, map[string]string{}
		closers.Lock()
		closers.all = append(closers.all, func() error { return os.RemoveAll(dir) })
		closers.Unlock()
	}
	path := filepath.Join(programs.dir, filepath.Base(pkg))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, pkg)
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
	programs.done[pkg] = path
	return path
}
