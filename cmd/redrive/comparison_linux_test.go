package main

import (
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The claims of docs/comparison.md about this command are typed in a pseudo terminal, row by row; a row without a test
// fails. Keys that are signals (Ctrl-C) are typed in integration/command, which has a process to signal.
func TestComparison_OurColumn(t *testing.T) {
	hermetic(t)
	t.Setenv("TERM", "xterm")
	t.Setenv("PAGER", "false")
	page, err := os.ReadFile("../../docs/comparison.md")
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	seed(t, "dead.db")
	seedQueue(t, "queue.db")
	t.Setenv("REDRIVE_STORE", "dead.db")
	t.Setenv("REDRIVE_BROKER", "sqlite:queue.db")
	rows := comparisonOfOutput(t)
	maps.Copy(rows, comparisonOfUse(t))
	_, table, found := strings.Cut(string(page), "\n| | redrive |")
	require.True(t, found)
	typedRows := 0
	for _, m := range regexp.MustCompile(`(?m)^\| ([^|-][^|]*) \|`).FindAllStringSubmatch(table, -1) {
		require.Contains(t, rows, m[1], "a row of docs/comparison.md that is not typed")
		t.Log(m[1])
		rows[m[1]]()
		typedRows++
	}
	require.Len(t, rows, typedRows)
}

// colour is an escape sequence that sets one.
var colour = regexp.MustCompile("\x1b\\[[0-9;]*m")

// shows types a line into a terminal of 80 columns: the exit code is the one that is wanted, and the screen, which it
// returns, has the texts.
func shows(t *testing.T, want int, line string, texts ...string) string {
	t.Helper()
	file, shown := terminal(t)
	require.NoError(t, unix.IoctlSetWinsize(int(file.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 80, Row: 24}))
	code := runContext(t.Context(), strings.Split(line, " "), file, file, file)
	screen := strings.ReplaceAll(shown(), "\r\n", "\n")
	require.Equal(t, want, code, "%s\n%s", line, screen)
	for _, text := range texts {
		require.Contains(t, screen, text, line)
	}
	return screen
}

// comparisonOfOutput are the rows about what the command prints, by their first column.
func comparisonOfOutput(t *testing.T) map[string]func() {
	t.Helper()
	return map[string]func(){
		"words": func() {
			require.Equal(t, shows(t, exitOK, "dlq list -q"), shows(t, exitOK, "dlq ls -q"))
		},
		"output": func() {
			for _, format := range []string{"table", "wide", "json", "jsonl", "yaml", "csv"} {
				shows(t, exitOK, "dlq list -o "+format, "orders")
			}
			shows(t, exitUsage, "dlq list -o xml", "json")
		},
		"picking values": func() {
			shows(t, exitOK, "dlq list --jq .[0].id", "5\n")
			shows(t, exitOK, "dlq show 3 --jq .id", "3\n")
			shows(t, exitUsage, "dlq list --jq .[")
		},
		"a table in a terminal": func() {
			for line := range strings.Lines(colour.ReplaceAllString(shows(t, exitOK, "dlq list", " ago"), "")) {
				require.LessOrEqual(t, len([]rune(strings.TrimRight(line, "\n"))), 80, line)
			}
		},
		"a table in a pipe": func() {
			_, stdout, _ := command(t, "dlq", "list")
			require.Contains(t, stdout, "2025-11-20 07:31:00Z")
			require.Contains(t, strings.SplitN(stdout, "\n", 2)[0], "ID")
		},
		"data and the rest": func() {
			_, stdout, stderr := command(t, "dlq", "groups")
			require.Contains(t, stdout, "bank: timeout")
			require.NotContains(t, stderr, "bank: timeout")
			_, _, quiet := command(t, "dlq", "groups", "-q")
			require.Empty(t, quiet)
		},
		"exit codes": func() {
			shows(t, exitOK, "dlq list")
			shows(t, exitError, "dlq list --server http://127.0.0.1:1")
			shows(t, exitUsage, "dlq list --limit many")
			shows(t, exitNotFound, "dlq show 999")
			shows(t, exitNotFound, "dlq list --store missing.db", "there is no store missing.db")
			shows(t, exitPartial, "dlq park 1 999")
			shows(t, exitRefused, "dlq restore 2")
			for _, code := range []string{"0", "1", "2", "3", "4", "5", "130"} {
				shows(t, exitOK, "help exit-codes", " "+code+"  ")
			}
		},
	}
}

// comparisonOfUse are the rows about how the command is used, by their first column.
func comparisonOfUse(t *testing.T) map[string]func() {
	t.Helper()
	return map[string]func(){
		"watching": func() { // runs watch of a stopped run: integration/command, TestTerminal_WatchesARunThatStops
			shows(t, exitOK, "dlq redrive --handler pay --detach --yes --id watched")
			shows(t, exitOK, "runs pause watched")
			shows(t, exitPartial, "runs watch watched", "to continue: redrive runs resume watched")
			shows(t, exitOK, "dlq tail --follow=false -n 2", "orders")
		},
		"Ctrl-C": func() { // and TestRedrive_InterruptAndResume; TestTerminal_InterruptAdjustResume
			shows(t, exitOK, "dlq redrive --handler pay --detach --yes --id other")
			_, stderr, stop := start(t, "runs", "watch", "other", "--store", "dead.db")
			require.Equal(t, exitInterrupted, stop())
			require.Contains(t, stderr.String(), "continues without you; redrive runs watch other")
		},
		"asking": func() { // the question itself: TestTerminal_RedriveAsks
			code, _, stderr := command(t, "dlq", "discard", "--topic", "orders")
			require.Equal(t, exitRefused, code, stderr)
			require.Contains(t, stderr, "--yes")
		},
		"trying": func() {
			for _, line := range []string{"dlq redrive --topic orders", "dlq discard --topic orders", "dlq purge"} {
				shows(t, exitOK, line+" --dry-run")
			}
		},
		"a slip": func() {
			shows(t, exitUsage, "dql list", "did you mean redrive dlq?")
			shows(t, exitUsage, "dlq list --tpic orders", "did you mean --topic?")
		},
		"completion": func() {
			for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
				shows(t, exitOK, "completion "+shell, "__complete")
			}
			shows(t, exitOK, "__complete dlq list --topic i", "invoices")
			shows(t, exitOK, "__complete dlq show 3", "no customer")
			shows(t, exitOK, "__complete dlq list --fingerprint ", "bank: timeout after ?")
		},
		"colours": func() {
			require.Regexp(t, colour, shows(t, exitOK, "dlq list"))
			require.NotRegexp(t, colour, shows(t, exitOK, "dlq list --no-color"))
			_, stdout, stderr := command(t, "dlq", "list")
			require.NotRegexp(t, colour, stdout+stderr)
			for name, value := range map[string]string{"NO_COLOR": "1", "TERM": "dumb"} {
				before := os.Getenv(name)
				t.Setenv(name, value)
				require.NotRegexp(t, colour, shows(t, exitOK, "dlq list"), name)
				t.Setenv(name, before)
			}
		},
		"pager": func() { shows(t, exitOK, "dlq list --all", "orders") }, // PAGER is a program that fails
		"where to": func() {
			shows(t, exitError, "dlq list --server http://127.0.0.1:1", "127.0.0.1:1")
			shows(t, exitUsage, "dlq list --profile prod", "prod")
			defer t.Setenv("REDRIVE_STORE", "dead.db")
			defer t.Setenv("REDRIVE_SERVER", "")
			t.Setenv("REDRIVE_STORE", "")
			t.Setenv("REDRIVE_SERVER", "http://127.0.0.1:1")
			shows(t, exitError, "dlq list", "127.0.0.1:1")
			shows(t, exitOK, "dlq list --store dead.db", "orders")
		},
		"credentials": func() {
			shows(t, exitUsage, "dlq list --token secret", "unknown flag: --token")
			shows(t, exitUsage, "dlq list --server http://127.0.0.1:1 --token-file none", "none")
		},
		"time spans": func() {
			for _, span := range []string{"90m", "24h", "30d"} {
				shows(t, exitOK, "dlq list --older-than "+span)
			}
		},
	}
}
