package services

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/integration/await"
)

// ErrExternal is returned when a test wants to stop or kill a server that the environment named: it is not ours.
var ErrExternal = errors.New("services: this server is not ours to stop")

// startPatience is how long a starting server may log nothing: on an idle machine it is ready in 1 to 8 s, on a very
// busy one in minutes.
const startPatience = await.Patience

// startAttempts bounds the starts of a server that ends immediately.
const startAttempts = 5

// stopTimeout bounds a clean stop, after which the server is killed. RabbitMQ takes 6 s on an idle machine.
const stopTimeout = 5 * time.Minute

// server is the common part of all servers. Its methods are safe for concurrent use.
type server struct {
	name       string
	dir        string // holds data, configuration and the log; removed by Close
	stopSignal syscall.Signal
	external   bool

	command func(ctx context.Context) *exec.Cmd // returns the command for one start
	ready   func(ctx context.Context) error     // nil once the server serves; called again and again
	closing func()                              // run by Close after the server stopped, if not nil

	mu   sync.Mutex
	proc *process
}

// Start starts a stopped or killed server again, on the same ports and data, and returns when it serves.
func (s *server) Start(ctx context.Context) error {
	if s.external {
		return ErrExternal
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		return fmt.Errorf("services: %s runs already", s.name)
	}
	// A server that was killed may have left children that hold its shared memory or port for another moment, so one
	// that ends at once gets a few more chances.
	for attempt := 1; ; attempt++ {
		proc, err := s.startOnce(ctx)
		if err == nil {
			s.proc = proc
			return nil
		}
		if attempt == startAttempts || !errors.As(err, new(finalError)) {
			return fmt.Errorf("services: start %s: %w\n%s", s.name, err, s.Log())
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// startOnce returns the process once it serves. The error is final if the process ended on its own.
func (s *server) startOnce(ctx context.Context) (*process, error) {
	// The child outlives ctx, which bounds only the start.
	proc, err := startProcess(s.command(context.WithoutCancel(ctx)), s.logPath())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stuck := time.AfterFunc(startPatience, func() { cancel(fmt.Errorf("has logged nothing for %s", startPatience)) })
	defer stuck.Stop()
	logged := int64(0)
	err = poll(ctx, func() error {
		if info, err := os.Stat(s.logPath()); err == nil && info.Size() > logged {
			logged = info.Size()
			stuck.Reset(startPatience)
		}
		select {
		case <-proc.done:
			return final(fmt.Errorf("ended at start: %w", errOr(proc.err, "exit status 0")))
		default:
			return s.ready(ctx)
		}
	})
	if err != nil {
		return nil, errors.Join(err, proc.kill())
	}
	return proc, nil
}

// Kill ends the server and its helpers with SIGKILL, as a crash would, and returns when it is gone. Start brings it
// back.
func (s *server) Kill() error {
	return s.end(func(p *process) error { return p.kill() })
}

// Stop ends the server cleanly, keeping its data. Start brings it back.
func (s *server) Stop() error {
	return s.end(func(p *process) error {
		if err := p.signal(s.stopSignal); err != nil {
			return err
		}
		timeout := time.NewTimer(stopTimeout)
		defer timeout.Stop()
		select {
		case <-p.done:
			return nil
		case <-timeout.C:
			return errors.Join(fmt.Errorf("services: %s did not stop in %s", s.name, stopTimeout), p.kill())
		}
	})
}

// Restart stops the server cleanly and starts it again on the same ports and data.
func (s *server) Restart(ctx context.Context) error {
	return errors.Join(s.Stop(), s.Start(ctx))
}

// Pause freezes the server with SIGSTOP: connections stay open and nothing answers. Resume continues it.
func (s *server) Pause() error { return s.signalAll(syscall.SIGSTOP) }

// Resume ends a Pause.
func (s *server) Resume() error { return s.signalAll(syscall.SIGCONT) }

// LimitFiles keeps every file of the server from growing beyond a size in bytes: for files of that size, the database
// finds the disk full. [Unlimited] lifts the limit. It applies to the server's processes and to those that they start.
func (s *server) LimitFiles(ctx context.Context, size uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return fmt.Errorf("services: limit the files of %s: it does not run", s.name)
	}
	text := "unlimited"
	if size != Unlimited {
		text = strconv.FormatUint(size, 10)
	}
	pid := s.proc.cmd.Process.Pid
	for _, p := range append([]int{pid}, descendants(pid)...) {
		// Only the soft limit, and as the server's own account, which may lift it again.
		limit := exec.CommandContext(ctx, "prlimit", "--pid="+strconv.Itoa(p), "--fsize="+text+":")
		limit.SysProcAttr = s.command(ctx).SysProcAttr
		if out, err := limit.CombinedOutput(); err != nil && (p == pid || alive(p)) {
			return fmt.Errorf("services: limit the files of %s: %w: %s", s.name, err, out)
		}
	}
	return nil
}

// Unlimited is the size for files that may grow as far as the disk allows.
const Unlimited = math.MaxUint64

// Close stops the server at once and removes its data. It does nothing to a server that is not ours.
func (s *server) Close() error {
	if s.external {
		return nil
	}
	// The data is deleted, so there is nothing for a clean stop to save; RabbitMQ takes six seconds for one.
	err := s.Kill()
	if s.closing != nil {
		s.closing()
	}
	return errors.Join(err, removeDir(s.dir))
}

// PID returns the process id of the running server, and 0 if it does not run or is not ours.
func (s *server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.cmd.Process.Pid
}

// Log returns the last 8 KiB of the server's log, for a test that failed.
func (s *server) Log() string { return s.logSince(0) }

// logSince returns the last 8 KiB of what the server has logged after its first from bytes.
func (s *server) logSince(from int) string {
	if s.external {
		return ""
	}
	const limit = 8 << 10
	log, err := os.ReadFile(s.logPath())
	if err != nil {
		return err.Error()
	}
	log = log[min(from, len(log)):]
	if len(log) > limit {
		log = log[len(log)-limit:]
	}
	return string(bytes.ToValidUTF8(log, nil))
}

// explain adds the server's log from now on to a test that fails: often only the log has the cause.
func (s *server) explain(t testing.TB) {
	t.Helper()
	if s.external {
		return
	}
	from := 0
	if info, err := os.Stat(s.logPath()); err == nil {
		from = int(info.Size())
	}
	t.Cleanup(func() {
		if log := s.logSince(from); t.Failed() && log != "" {
			t.Logf("log of %s:\n%s", s.name, log)
		}
	})
}

func (s *server) logPath() string { return filepath.Join(s.dir, "log.txt") }

func (s *server) signalAll(sig syscall.Signal) error {
	if s.external {
		return ErrExternal
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return fmt.Errorf("services: %s does not run", s.name)
	}
	return s.proc.signalAll(sig)
}

// end ends the process by how; a server that does not run is fine.
func (s *server) end(how func(*process) error) error {
	if s.external {
		return ErrExternal
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return nil
	}
	err := how(s.proc)
	s.proc = nil
	return err
}

func errOr(err error, text string) error {
	if err != nil {
		return err
	}
	return errors.New(text)
}
