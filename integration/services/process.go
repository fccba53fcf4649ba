package services

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/integration/await"
)

// process is a child that we started. When the test process is killed, the kernel signals the child.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has ended and was reaped
	err  error         // how it ended; read it after done
}

// startProcess starts cmd with its output appended to the file logPath.
func startProcess(cmd *exec.Cmd, logPath string) (*process, error) {
	// This is not a pipe, because Wait would wait for grandchildren that keep it open.
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log

	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel sends the parent-death signal when the thread that forked the child ends, not the process, and Go may
		// end a thread (golang/go#27505). A goroutine that is locked to its thread until the child has ended keeps that
		// thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// signal sends sig; it is not an error if the process has already ended.
func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %v to %s: %w", sig, p.cmd.Path, err)
	}
	return nil
}

// signalAll sends sig to the process and all its descendants.
func (p *process) signalAll(sig syscall.Signal) error {
	err := p.signal(sig)
	for _, pid := range descendants(p.cmd.Process.Pid) {
		if killErr := syscall.Kill(pid, sig); killErr != nil && !errors.Is(killErr, syscall.ESRCH) {
			err = errors.Join(err, fmt.Errorf("signal %v to %d: %w", sig, pid, killErr))
		}
	}
	return err
}

// kill ends the process and all its descendants, as a crash of the machine would, and waits until all have ended.
// Killing only the process would differ from a crash: a PostgreSQL backend still responds for a while after its
// postmaster's death.
func (p *process) kill() error {
	// A stopped process cannot start more children while we list and kill them.
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	children := descendants(p.cmd.Process.Pid)
	if err := p.signalAll(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	return poll(ctx, func() error {
		for _, pid := range children {
			if alive(pid) {
				return fmt.Errorf("%s: process %d still exists", p.cmd.Path, pid)
			}
		}
		return nil
	})
}

// finalError is an error that ends a poll at once, because further attempts are useless.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

// poll calls try every 25 ms until it returns nil or a final error, or ctx is done.
func poll(ctx context.Context, try func() error) error {
	ticker := time.NewTicker(25 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := try()
		if err == nil || errors.As(err, new(finalError)) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-ticker.C:
		}
	}
}

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
