package services

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redrive-go/redrive/integration/await"
)

// ErrExternal is returned when a test tries to stop or kill a server that the environment names.
var ErrExternal = errors.New("services: the environment names this server, so tests must not stop it")

const (
	// startPatience is how long a starting server may log nothing and not get on: a start takes 1 to 8 s on an idle
	// machine, and minutes on a very busy one.
	startPatience = await.Patience
	// startStep is the processor time in which a starting server gets on. One that hangs uses less in startPatience.
	startStep = 500 * time.Millisecond
)

// startAttempts bounds the attempts to start a server that ends immediately.
const startAttempts = 5

// stopTimeout bounds a clean stop, after which the server is killed. RabbitMQ needs 6 s on an idle machine.
const stopTimeout = 5 * time.Minute

// server is the common part of all servers. Its methods are safe for concurrent use.
type server struct {
	place

	name       string
	stopSignal syscall.Signal
	external   bool

	command func(ctx context.Context) *exec.Cmd // returns the command for one start
	ready   func(ctx context.Context) error     // called repeatedly; nil once the server is ready
	closing func()                              // run by Close after the server stopped, if not nil

	mu   sync.Mutex
	proc *process
}

// DatabaseServer is a test's own database server, which it may kill and freeze.
type DatabaseServer interface {
	Kill() error
	Start(ctx context.Context) error
	Pause() error
	Resume() error
	Database(t testing.TB) (url string)
}

// EachDatabase runs a test on PostgreSQL, MariaDB and MySQL in parallel, each on a server whose commits survive its
// crash.
func EachDatabase(t *testing.T, test func(t *testing.T, s DatabaseServer)) {
	t.Helper()
	cfg := MySQLConfig{Durable: true}
	t.Run("PostgreSQL", func(t *testing.T) { t.Parallel(); test(t, Postgres(t, PostgresConfig{Durable: true})) })
	t.Run("MariaDB", func(t *testing.T) { t.Parallel(); test(t, MariaDB(t, cfg)) })
	t.Run("MySQL", func(t *testing.T) { t.Parallel(); test(t, MySQL(t, cfg)) })
}

// Start starts a stopped or killed server again, on the same ports and data, and returns once it is ready.
func (s *server) Start(ctx context.Context) error {
	if s.external {
		return ErrExternal
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		return fmt.Errorf("services: %s is already running", s.name)
	}
	// Children of a killed server may hold its shared memory or port for another moment, so a server that ends at once is
	// started a few more times.
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

// startable is any server that is not running yet.
type startable interface {
	closer
	Start(ctx context.Context) error
}

// started starts a new server, and closes it if that fails.
func started[S startable](ctx context.Context, s S) (S, error) {
	if err := s.Start(ctx); err != nil {
		return s, errors.Join(err, s.Close())
	}
	return s, nil
}

// startOnce returns the process once it is ready. The error is final if the process ended on its own.
func (s *server) startOnce(ctx context.Context) (*process, error) {
	// The child outlives ctx, which bounds only the start.
	proc, err := startProcess(s.command(context.WithoutCancel(ctx)), s.logPath())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stuck := time.AfterFunc(startPatience, func() {
		cancel(fmt.Errorf("has logged nothing, and has hardly run, for %s", startPatience))
	})
	defer stuck.Stop()
	progress := int64(0) // bytes logged, and steps of processor time
	err = poll(ctx, func() error {
		now := int64(cpuTime(proc.cmd.Process.Pid) / startStep)
		if info, err := os.Stat(s.logPath()); err == nil && now+info.Size() > progress {
			progress = now + info.Size()
			stuck.Reset(startPatience)
		}
		select {
		case <-proc.done:
			return finalError{fmt.Errorf("ended at start: %w", cmp.Or(proc.err, errors.New("exit status 0")))}
		default:
			look, end := context.WithTimeout(ctx, startPatience/10) // a starting server may lose a request
			defer end()
			return s.ready(look)
		}
	})
	if err != nil {
		return nil, errors.Join(err, proc.kill())
	}
	return proc, nil
}

// Kill ends the server and its helpers with SIGKILL, like a crash, and returns once it has ended. Start starts it
// again.
func (s *server) Kill() error { return s.end((*process).kill) }

// Stop stops the server cleanly and keeps its data. Start starts it again.
func (s *server) Stop() error {
	return s.end(func(p *process) error {
		if err := p.signal(s.stopSignal); err != nil {
			return err
		}
		select {
		case <-p.done:
			return nil
		case <-time.After(stopTimeout):
			return errors.Join(fmt.Errorf("services: %s did not stop in %s", s.name, stopTimeout), p.kill())
		}
	})
}

// Restart stops the server cleanly and starts it again on the same ports and data.
func (s *server) Restart(ctx context.Context) error { return errors.Join(s.Stop(), s.Start(ctx)) }

// Pause freezes the server with SIGSTOP: connections remain open, and it does not respond. Resume continues it.
func (s *server) Pause() error { return s.signalAll(syscall.SIGSTOP) }

// Resume ends a Pause.
func (s *server) Resume() error { return s.signalAll(syscall.SIGCONT) }

// LimitFiles limits the size of every file of the server in bytes: beyond it, writing fails as on a full disk.
// [Unlimited] lifts the limit. It applies to the server's processes and to those that they start.
func (s *server) LimitFiles(ctx context.Context, size uint64) error {
	text := "unlimited"
	if size != Unlimited {
		text = strconv.FormatUint(size, 10)
	}
	return s.running(func(proc *process) error {
		pid := proc.cmd.Process.Pid
		for _, p := range append([]int{pid}, descendants(pid)...) {
			// This sets only the soft limit, as the server's own account, which may lift it again.
			limit := exec.CommandContext(ctx, "prlimit", "--pid="+strconv.Itoa(p), "--fsize="+text+":")
			limit.SysProcAttr = s.command(ctx).SysProcAttr
			if out, err := limit.CombinedOutput(); err != nil && (p == pid || alive(p)) {
				return fmt.Errorf("services: limit the files of %s: %w: %s", s.name, err, out)
			}
		}
		return nil
	})
}

// Unlimited is the size for files that may grow until the disk is full.
const Unlimited = math.MaxUint64

// Close stops the server at once and removes its data. It does nothing to a server that the environment names.
func (s *server) Close() error {
	if s.external {
		return nil
	}
	// The data is deleted, so a clean stop, which takes RabbitMQ six seconds, is not needed.
	err := s.Kill()
	if s.closing != nil {
		s.closing()
	}
	return errors.Join(err, removeDir(s.dir))
}

// PID returns the process id of the server, or 0 if it is not running or the environment names it.
func (s *server) PID() (pid int) {
	_ = s.running(func(p *process) error { pid = p.cmd.Process.Pid; return nil }) // otherwise it has none
	return pid
}

// Log returns the last 8 KiB of the server's log, for a test that failed.
func (s *server) Log() string { return s.logSince(0) }

// logSince returns the last 8 KiB of the server's log after its first from bytes.
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

// explain adds the server's log from now on to the output of a failed test, because often only the log has the cause.
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

func (s *server) logPath() string { return s.in("log.txt") }

func (s *server) signalAll(sig syscall.Signal) error {
	return s.running(func(p *process) error { return p.signalAll(sig) })
}

// end ends the process with how; it does nothing if the server is not running.
func (s *server) end(how func(*process) error) error {
	err := s.running(func(p *process) error {
		s.proc = nil
		return how(p)
	})
	if errors.Is(err, errNotRunning) {
		return nil
	}
	return err
}

var errNotRunning = errors.New("services: the server is not running")

// running calls do with the process of the server.
func (s *server) running(do func(*process) error) error {
	if s.external {
		return ErrExternal
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return fmt.Errorf("%w: %s", errNotRunning, s.name)
	}
	return do(s.proc)
}
