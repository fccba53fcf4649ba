package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
)

// terminal returns a pseudo terminal, and a function that closes it and returns its screen.
func terminal(t *testing.T) (file *os.File, screen func() string) {
	t.Helper()
	file, _, screen = keyboard(t)
	return file, screen
}

// keyboard is terminal with input.
func keyboard(t *testing.T) (file, keys *os.File, screen func() string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err, "this test needs pseudo terminals (/dev/ptmx)")
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	file, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	read := make(chan string, 1)
	go func() {
		var out bytes.Buffer
		_, _ = io.Copy(&out, master) // ends with an error when the other side is closed
		read <- out.String()
	}()
	return file, master, func() string {
		require.NoError(t, file.Close())
		text := <-read
		require.NoError(t, master.Close())
		return text
	}
}

var controls = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]") // colours, and moves of the cursor

// Long work shows its progress to people, with colours unless NO_COLOR is set, and never in output for programs.
func TestProgress(t *testing.T) {
	hermetic(t)
	dir := t.TempDir()
	store, queue := filepath.Join(dir, "dead.db"), filepath.Join(dir, "queue.db")
	seed(t, store)
	seedQueue(t, queue)
	t.Setenv("TERM", "xterm")
	exported := filepath.Join(dir, "dead.jsonl")
	commands := [][]string{
		{"exporting", "dlq", "export", "--status", "any", "--file", exported},
		{"importing", "dlq", "import", exported},
		{"parked", "dlq", "park", "1-3"},
		{"restore", "dlq", "restore", "--status", "parked", "--yes"},
		{"completed, 0 died again", "dlq", "redrive", "--handler", "pay", "--yes", "--close-on-publish"},
	}
	for _, command := range commands {
		for _, noColor := range []string{"", "1"} {
			t.Setenv("NO_COLOR", noColor)
			if noColor != "" && command[2] == "export" {
				command[len(command)-1] += "2"
			}
			file, screen := terminal(t)
			require.NoError(t, unix.IoctlSetWinsize(int(file.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 40, Row: 24}))
			var out bytes.Buffer
			args := append(command[1:len(command):len(command)], "--store", store, "--broker", "sqlite:"+queue)
			code := runContext(t.Context(), args, strings.NewReader(""), &out, file)
			text := screen()
			if noColor == "" {
				require.Equal(t, exitOK, code, text)
				require.Contains(t, text, command[0], command)
				require.Contains(t, text, "\x1b[9", "colours")
				require.NotContains(t, out.String(), "\x1b[")
			} else {
				require.NotRegexp(t, "\x1b\\[[0-9;]*m", text, "no colours: %v", command)
			}
			for line := range strings.Lines(controls.ReplaceAllString(text, "")) { // a line that wraps is not drawn over
				if strings.Contains(line, " in ") {
					require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\r\n")), 40, "%s", line)
				}
			}
		}
	}
	file, screen := terminal(t)
	require.Equal(t, exitOK, runContext(t.Context(), []string{"dlq", "export", "--quiet", "--store", store},
		strings.NewReader(""), io.Discard, file))
	require.Empty(t, screen())
}

// Strings of --jq are as they are for programs, and control no terminal.
func TestTerminal_JQ(t *testing.T) {
	file, screen := terminal(t)
	var piped bytes.Buffer
	for _, out := range []io.Writer{file, &piped} {
		a := &app{out: out}
		a.flags.jq = ".text, [.text]"
		require.NoError(t, a.printOne(map[string]string{"text": hostile + "\nb\tc"}, nil))
	}
	require.NotRegexp(t, unprintable, strings.ReplaceAll(screen(), "\r\n", "\n"))
	require.True(t, strings.HasPrefix(piped.String(), hostile+"\nb\tc\n"), piped.String())
}

// In a terminal of 80 columns no line of a table is wider, and times are relative; -o wide and programs get everything.
func TestTerminal_TablesFit(t *testing.T) {
	hermetic(t)
	store := filepath.Join(t.TempDir(), "dead.db")
	seed(t, store)
	t.Setenv("TERM", "dumb")
	onScreen := func(columns uint16, args ...string) string {
		file, screen := terminal(t)
		require.NoError(t, unix.IoctlSetWinsize(int(file.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: 24}))
		require.Equal(t, exitOK, runContext(t.Context(), append(args, "--store", store), strings.NewReader(""), file,
			io.Discard))
		return controls.ReplaceAllString(strings.ReplaceAll(screen(), "\r\n", "\n"), "")
	}
	const run = "0198c5b2-7e1e-7c3a-9d52-0242ac120002"
	require.Equal(t, exitOK, runContext(t.Context(), []string{
		"dlq", "redrive", "--handler", "pay", "--detach", "--yes", "--id", run, "--actor", "ana@a-machine-with-a-long-name",
		"--store", store,
	}, strings.NewReader(""), io.Discard, io.Discard))
	for _, command := range [][]string{
		{"dlq", "list"},
		{"dlq", "groups"},
		{"dlq", "stats"},
		{"runs", "list"},
		{"audit", "list"},
	} {
		for _, columns := range []uint16{80, 120} {
			text := onScreen(columns, command...)
			for line := range strings.Lines(text) {
				require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), int(columns), "%v\n%s", command, text)
			}
		}
	}
	t.Setenv("TERM", "xterm")
	for line := range strings.Lines(onScreen(60, "dlq", "list")) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 60, "blanks behind a bold title:\n%s", line)
	}
	t.Setenv("TERM", "dumb")
	narrow := onScreen(80, "dlq", "list")
	require.Contains(t, narrow, " ago")
	require.NotContains(t, narrow, "MESSAGE", "what matters least is left out, so that the error can be read")
	require.Contains(t, narrow, "order 17 has no customer")
	require.Contains(t, onScreen(60, "dlq", "list"), "…")
	require.Contains(t, onScreen(60, "runs", "list"), run, "ids are for the next command")
	require.Regexp(t, `(?m)^[0-9a-f]{16} +\d+ +bank: timeout after \?`, onScreen(60, "dlq", "groups"))
	hours := onScreen(80, "dlq", "stats", "--since", "87600h")
	require.Contains(t, hours, "2025-11-20 07:00Z", "hours of the clock, also where other times are relative")
	require.Contains(t, onScreen(80, "dlq", "list", "-o", "wide"), "2025-11-20 07:31:00Z")
	var out bytes.Buffer
	require.Equal(t, exitOK, runContext(t.Context(), []string{"dlq", "list", "--store", store}, strings.NewReader(""),
		&out, io.Discard))
	require.Contains(t, out.String(), "2025-11-20 07:31:00Z")
	require.Equal(t, exitOK, runContext(t.Context(), []string{"dlq", "park", "1", "--store", store}, strings.NewReader(""),
		io.Discard, io.Discard))
	doctor := onScreen(80, "doctor")
	require.Contains(t, strings.Join(strings.Fields(doctor), " "), "parked")
	require.NotContains(t, doctor, "…", "a remedy is read to its end")
	for line := range strings.Lines(doctor) {
		require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), 80, "%s", doctor)
	}
}

// Before the question, a person who redrives a filter sees what, why, where to and how fast, also that other groups
// than the one that failed will get it, and after a no that nothing was done.
func TestTerminal_RedriveAsks(t *testing.T) {
	hermetic(t)
	dir := t.TempDir()
	store, queue := filepath.Join(dir, "dead.db"), filepath.Join(dir, "queue.db")
	seed(t, store)
	seedQueue(t, queue)
	letters, err := dlq.Open(t.Context(), "sqlite:"+store, dlq.WithoutSpool())
	require.NoError(t, err)
	require.NoError(t, letters.DeadLetter(t.Context(), &envelope.DeadLetter{
		Message: message.NewMessage("foreign", []byte("{}")), Reason: envelope.ReasonExhausted, Handler: "pay", Attempts: 4,
		At: time.Date(2025, 11, 20, 7, 0, 0, 0, time.UTC), Err: envelope.Error{Message: "bank: timeout after 30s"},
		Origin:    envelope.Origin{Broker: "sqlite", Topic: "payments", Consumer: "ledger"},
		Collected: envelope.Collected{Broker: "sqlite", From: "payments_dlq", Format: "plain"},
	}))
	require.NoError(t, letters.Close())
	t.Setenv("TERM", "dumb")
	file, keys, screen := keyboard(t)
	a := &app{in: file, out: io.Discard, err: file}
	root := a.root()
	root.SetArgs([]string{
		"dlq", "redrive", "--handler", "pay", "--rate", "20", "--canary", "1,10", "--store", store,
		"--broker", "sqlite:" + queue,
	})
	answered := make(chan error, 1)
	go func() { answered <- root.ExecuteContext(t.Context()) }()
	_, err = keys.WriteString("n\n") // it is read on request
	require.NoError(t, err)
	require.ErrorContains(t, <-answered, "nothing was done")
	require.NoError(t, a.close())
	text := screen()
	require.Contains(t, text, "orders")
	require.Contains(t, text, "because  bank: timeout after ?")
	require.Contains(t, text, "where each came from, at most 20 a second, in first steps of 1, 10")
	require.Contains(t, text, "redrive 6 dead letters? [y/N]")
	require.Contains(t, text, "warning: it goes to topic payments: every group that reads it gets it")
}

// Ctrl-C at the question for a password ends the command, and the terminal shows again what is typed.
func TestTerminal_InterruptedPassword(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	file, keys, screen := keyboard(t)
	before, err := term.GetState(int(file.Fd()))
	require.NoError(t, err)
	ended := make(chan int, 1)
	go func() { ended <- runContext(ctx, []string{"config", "hash-password"}, file, io.Discard, file) }()
	require.Eventually(t, func() bool {
		now, err := term.GetState(int(file.Fd()))
		return err == nil && !reflect.DeepEqual(before, now)
	}, 2*time.Minute, time.Millisecond, "it hides what is typed")
	interrupt()
	require.Equal(t, exitInterrupted, <-ended)
	after, err := term.GetState(int(file.Fd()))
	require.NoError(t, err)
	require.Equal(t, before, after)
	_, err = keys.WriteString("\n") // the terminal stays open while it is read
	require.NoError(t, err)
	require.Contains(t, screen(), "password: \r\n")
}

// A typo is answered with a suggestion, and a missing store is not created.
func TestTerminal_Mistakes(t *testing.T) {
	hermetic(t)
	t.Chdir(t.TempDir())
	for line, want := range map[string]string{
		"dql list":                     `unknown command "dql" for "redrive"; did you mean redrive dlq?`,
		"dlq redrve 1":                 `unknown command "redrve" for "redrive dlq"; did you mean redrive dlq redrive?`,
		"dlq show":                     "redrive dlq show ID",
		"dlq list --tpic orders":       "unknown flag: --tpic; did you mean --topic?",
		"dlq list --store missing.db":  "there is no store missing.db; redrive migrate creates one",
		"runs show x --store other.db": "there is no store other.db",
	} {
		var faults bytes.Buffer
		require.NotEqual(t, exitOK, runContext(t.Context(), strings.Fields(line), strings.NewReader(""), io.Discard, &faults))
		require.Contains(t, faults.String(), want)
	}
	require.NoFileExists(t, "missing.db")
}
