package command_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/dlq"
	_ "github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// night is the environment of an engineer on call: a directory with redrive.yaml, a store with dead letters, their
// queue, and a terminal with 80 columns.
type night struct{ dir string }

func newNight(t *testing.T, letters int) night {
	t.Helper()
	n := night{t.TempDir()}
	require.NoError(t, os.WriteFile(filepath.Join(n.dir, "redrive.yaml"), []byte(
		"store: {url: \"sqlite:dead.db\"}\nbrokers: {queue: {url: \"sqlite:queue.db\"}}\n"+
			"server: {address: \"127.0.0.1:0\"}\n"), 0o600))
	store, err := dlq.Open(t.Context(), "sqlite:"+filepath.Join(n.dir, "dead.db")+"?synchronous=normal",
		dlq.WithoutSpool())
	require.NoError(t, err)
	for i := range letters {
		m := message.NewMessage(fmt.Sprintf("0198c5b2-7e1e-7c3a-9d52-0242ac12%04d", i), fmt.Appendf(nil, `{"order":%d}`, i))
		m.Metadata[envelope.KeyMessageID] = m.UUID
		_, err := store.Store().Put(t.Context(), dlq.NewEntry(&envelope.DeadLetter{
			Message: m, Reason: envelope.ReasonExhausted, Class: "*bank.Error", Handler: "charge", Attempts: 4,
			At:     time.Now().Add(-time.Hour),
			Err:    envelope.Error{Message: fmt.Sprintf("bank: order %d: connection refused by 10.0.0.%d:443", i, i%9)},
			Origin: envelope.Origin{Broker: "sqlite", Topic: "orders", Consumer: "billing"},
		}))
		require.NoError(t, err)
	}
	require.NoError(t, store.Close())
	broker, err := brokers.Open(t.Context(), "sqlite:"+filepath.Join(n.dir, "queue.db"))
	require.NoError(t, err)
	subscriber, ok := broker.Subscriber(brokers.WithGroup("billing")).(message.SubscribeInitializer)
	require.True(t, ok)
	require.NoError(t, subscriber.SubscribeInitialize("orders"))
	require.NoError(t, broker.Close())
	return n
}

// session is a command in a pseudo terminal.
type session struct {
	cmd      *exec.Cmd
	keys     *os.File
	terminal string // its file name
	mu       sync.Mutex
	screen   bytes.Buffer
	ended    chan struct{} // closed when the program has ended
	closed   chan struct{} // closed when no process has the terminal open
}

// begin types a command line.
func (n night) begin(t *testing.T, line string) *session {
	t.Helper()
	program := services.Program(t, "./cmd/redrive")
	s := &session{
		cmd:   exec.CommandContext(t.Context(), program, strings.Fields(line)...),
		ended: make(chan struct{}), closed: make(chan struct{}),
	}
	s.cmd.Dir = n.dir
	s.cmd.Env = append(os.Environ(), "TERM=dumb", "COLUMNS=", "REDRIVE_ACTOR=ana", "REDRIVE_CONFIG=", "REDRIVE_STORE=",
		"REDRIVE_BROKER=",
		"REDRIVE_SERVER=", "REDRIVE_PROFILE=")
	keys, terminal, err := pty.Open()
	require.NoError(t, err)
	t.Cleanup(func() { _ = keys.Close() })
	defer terminal.Close() // from then on only the program has it open
	require.NoError(t, pty.Setsize(keys, &pty.Winsize{Rows: 24, Cols: 80}))
	s.keys, s.terminal = keys, terminal.Name()
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = terminal, terminal, terminal
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, s.cmd.Start())
	go func() {
		defer close(s.ended)
		_ = s.cmd.Wait() // ends asks for the exit code
	}()
	go func() {
		defer close(s.closed)
		_, _ = io.Copy(writer{s}, s.keys) // returns an error once the program has ended
	}()
	return s
}

type writer struct{ s *session }

func (w writer) Write(p []byte) (int, error) {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	return w.s.screen.Write(p)
}

func (s *session) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.ReplaceAll(s.screen.String(), "\r\n", "\n")
}

// String is shown by a failed test: the current screen.
func (s *session) String() string { return s.text() }

// sees waits until the screen shows text.
func (s *session) sees(t *testing.T, text string) {
	t.Helper()
	await.True(t, func() bool { return strings.Contains(s.text(), text) }, "%s\n%s", text, s)
}

func (s *session) types(t *testing.T, keys string) {
	t.Helper()
	_, err := s.keys.WriteString(keys)
	require.NoError(t, err)
}

// ends waits for the program to end, and returns its exit code and its screen.
func (s *session) ends(t *testing.T) (code int, screen string) {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(await.Patience):
		_ = s.cmd.Process.Signal(syscall.SIGQUIT) // it prints its goroutines
		defer func() { t.Errorf("the program did not end, and was killed:\n%s", s) }()
	}
	select {
	case <-s.closed:
	case <-time.After(await.Patience):
		require.Fail(t, "the terminal is open, although its program should have ended", "by %v:\n%s", s.holders(), s)
	}
	<-s.ended
	return s.cmd.ProcessState.ExitCode(), s.text()
}

// holders returns the open files through which processes have the terminal open, with the names of the processes.
func (s *session) holders() (all []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*") // only on Linux
	for _, file := range files {
		if name, err := os.Readlink(file); err == nil && name == s.terminal {
			program, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "..", "comm")) // it may have ended meanwhile
			all = append(all, file+" "+strings.TrimSpace(string(program)))
		}
	}
	return all
}

// typed runs a command that needs no keys.
func (n night) typed(t *testing.T, line string) (code int, screen string) {
	t.Helper()
	return n.begin(t, line).ends(t)
}

const ctrlC = "\x03"

// Every list fits into 80 columns, like those of kubectl and gh: times are relative, ids are complete, and the error is
// readable. -o wide has the other columns.
func TestTerminal_ListsFit(t *testing.T) {
	t.Parallel()
	n := newNight(t, 12)
	code, screen := n.typed(t, "dlq redrive --handler charge --limit 3 --detach --yes --id "+
		"0198c5b2-7e1e-7c3a-9d52-0242ac120002")
	require.Zero(t, code, screen)
	for line, wants := range map[string][]string{
		"dlq list":   {"connection refused", "1h ago"},
		"dlq groups": {"bank: order ?: connection refused by ?", "1h ago"},
		"dlq stats":  {"12 dead letters", ":00Z"},
		"runs list":  {"0198c5b2-7e1e-7c3a-9d52-0242ac120002", "s ago"},
		"audit list": {"ana", "run start"},
		"doctor":     {"answers"},
	} {
		code, screen := n.typed(t, line)
		require.Zero(t, code, "%s\n%s", line, screen)
		for _, want := range wants {
			require.Contains(t, screen, want, line)
		}
		for row := range strings.Lines(screen) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(row, "\n")), 80, "%s\n%s", line, screen)
		}
	}
	_, wide := n.typed(t, "dlq list -o wide")
	require.Contains(t, wide, "0198c5b2-7e1e-7c3a-9d52-0242ac120011")
	require.Regexp(t, `\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ`, wide)
}

// A typo is answered with a suggestion, and a missing store with how to create one.
func TestTerminal_Mistakes(t *testing.T) {
	t.Parallel()
	n := newNight(t, 1)
	for line, want := range map[string]string{
		"dlq lst":                     "did you mean redrive dlq list?",
		"run list":                    "did you mean redrive runs?",
		"dlq list --tpoic orders":     "did you mean --topic?",
		"dlq list --store daed.db":    "there is no store daed.db; redrive migrate creates one",
		"dlq show 4711":               "4711",
		"dlq list --config nope.yaml": "nope.yaml",
	} {
		code, screen := n.typed(t, line)
		require.NotZero(t, code, line)
		require.Contains(t, screen, want, line)
		require.NotRegexp(t, `redrive: (dlq|sqlstore|config|cmd)[/:]`, screen, "no error names a package")
		require.NotContains(t, screen, "goroutine ", line)
	}
	require.NoFileExists(t, filepath.Join(n.dir, "daed.db"))
}

// A redrive asks for confirmation with all relevant facts, and after "no" nothing has changed.
func TestTerminal_AsksForConfirmation(t *testing.T) {
	t.Parallel()
	n := newNight(t, 12)
	s := n.begin(t, "dlq redrive --handler charge --rate 20 --canary 1,10")
	s.sees(t, "redrive 12 dead letters? [y/N]")
	s.types(t, "n\n")
	code, screen := s.ends(t)
	require.Equal(t, 5, code, screen)
	require.Regexp(t, `12 +orders`, screen)
	require.Contains(t, screen, "because  bank: order ?: connection refused")
	require.Contains(t, screen, "at most 20 a second, in first steps of 1, 10")
	require.Contains(t, screen, "nothing was done")
	_, runs := n.typed(t, "runs list")
	require.Contains(t, runs, "no runs")
}

// Ctrl-C during a run pauses it and prints the command that resumes it. The run can be watched by a second user,
// adjusted, and resumed to its end.
func TestTerminal_InterruptAdjustResume(t *testing.T) {
	t.Parallel()
	n := newNight(t, 30)
	s := n.begin(t, "dlq redrive --handler charge --rate 0.2 --yes --id night --close-on-publish") // minutes, until Ctrl-C
	await.True(t, func() bool {
		_, shown := n.typed(t, "runs show night")
		return regexp.MustCompile(`[1-9]\d* succeeded`).MatchString(shown)
	})
	s.types(t, ctrlC)
	code, screen := s.ends(t)
	require.Equal(t, 130, code, screen)
	require.Contains(t, screen, "interrupted: run night is paused; to continue: redrive runs resume night")

	code, screen = n.typed(t, "runs watch night")
	require.Equal(t, 4, code, screen)
	require.Contains(t, screen, "run night: paused")
	require.Contains(t, screen, "to continue: redrive runs resume night")

	code, screen = n.typed(t, "runs adjust night --rate 0")
	require.Zero(t, code, screen)
	require.Contains(t, screen, "as fast as possible")
	code, screen = n.typed(t, "runs resume night")
	require.Zero(t, code, screen)
	require.Contains(t, screen, "run night: completed\n30 of 30 done: 30 succeeded")
}

// Commands that only show something (tail, watch) also end at Ctrl-C, and explain what that means.
func TestTerminal_InterruptedWhileShowing(t *testing.T) {
	t.Parallel()
	n := newNight(t, 3)
	s := n.begin(t, "dlq tail -n 3")
	s.sees(t, "connection refused")
	s.types(t, ctrlC)
	code, screen := s.ends(t)
	require.Contains(t, []int{0, 130}, code, screen)

	code, screen = n.typed(t, "dlq redrive --handler charge --detach --yes --id later")
	require.Zero(t, code, screen)
	require.Contains(t, screen, "redrive runs watch later shows it")
	s = n.begin(t, "runs watch later")
	s.sees(t, "running")
	s.types(t, ctrlC)
	code, screen = s.ends(t)
	require.Equal(t, 130, code, screen)
	require.Contains(t, screen, "run later continues without you; redrive runs watch later shows it again")

	s = n.begin(t, "serve")
	s.sees(t, "serving")
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGINT))
	code, screen = s.ends(t)
	require.Zero(t, code, screen)
}

// Presets, runs and groups are completed, with descriptions.
func TestTerminal_Completes(t *testing.T) {
	t.Parallel()
	n := newNight(t, 2)
	for line, want := range map[string]string{
		"__complete explain --preset l":        "laravel",
		"__complete dlq redrive --fingerprint": ":",
		"__complete dlq list --topic o":        "orders",
		"__complete runs a":                    "adjust\tChange the speed and the bounds of a run",
	} {
		code, screen := n.typed(t, line)
		require.Zero(t, code, screen)
		require.Contains(t, screen, want, line)
	}
	code, script := n.typed(t, "completion bash")
	require.Zero(t, code)
	require.Contains(t, script, "__start_redrive")
}

// Watching a run that stops ends with the reason and the commands that show and resume the run.
func TestTerminal_WatchesARunThatStops(t *testing.T) {
	t.Parallel()
	n := newNight(t, 12)
	for _, name := range []string{"queue.db", "queue.db-wal", "queue.db-shm"} { // and with it their origin
		require.NoError(t, os.RemoveAll(filepath.Join(n.dir, name)))
	}
	code, screen := n.typed(t, "dlq redrive --handler charge --canary 1 --yes --id nowhere")
	require.NotZero(t, code, screen)
	code, screen = n.typed(t, "runs watch nowhere")
	require.NotZero(t, code, screen)
	require.Contains(t, screen, "run nowhere: stopped")
	require.Contains(t, screen, "redrive runs show nowhere")
	require.Contains(t, screen, "redrive runs resume nowhere")
}

// The server resumes a run for a terminal that knows only the server's address; a new token is shown once.
func TestTerminal_ThroughAServer(t *testing.T) {
	t.Parallel()
	n := newNight(t, 12)
	code, screen := n.typed(t, "dlq redrive --handler charge --detach --yes --id night --close-on-publish")
	require.Zero(t, code, screen)
	code, screen = n.typed(t, "runs pause night")
	require.Zero(t, code, screen)
	server := n.begin(t, "serve")
	server.sees(t, "serving")
	server.sees(t, "brokers=1") // wait for the whole line, which a terminal may deliver in parts
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(server.text())
	require.NotEmpty(t, address, server.text())
	far := night{t.TempDir()}
	code, screen = far.typed(t, "runs resume night --server "+address)
	require.Zero(t, code, screen)
	require.Contains(t, screen, "run night: completed\n12 of 12 done: 12 succeeded")
	code, screen = far.typed(t, "audit list --run night --server "+address)
	require.Zero(t, code, screen)
	require.Contains(t, screen, "ana")
	code, screen = n.typed(t, "token create phone --role viewer")
	require.Zero(t, code, screen)
	require.Contains(t, screen, "rdt_")
	code, screen = n.typed(t, "token list")
	require.Zero(t, code, screen)
	require.Contains(t, screen, "phone")
	require.NotContains(t, screen, "rdt_", "it was shown once")
	server.types(t, ctrlC)
	code, screen = server.ends(t)
	require.Zero(t, code, screen)
}

// The version is one line with the versions of the program and the compiler.
func TestTerminal_Version(t *testing.T) {
	t.Parallel()
	n := newNight(t, 0)
	for _, line := range []string{"--version", "version"} {
		code, screen := n.typed(t, line)
		require.Zero(t, code, screen)
		require.Regexp(t, `^redrive \S+.* go1\.\S+\n$`, screen)
	}
}
