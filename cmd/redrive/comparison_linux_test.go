package main

import (
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
	typed := func(line string) (code int, screen string) {
		file, shown := terminal(t)
		require.NoError(t, unix.IoctlSetWinsize(int(file.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: 80, Row: 24}))
		code = runContext(t.Context(), strings.Split(line, " "), file, file, file)
		return code, strings.ReplaceAll(shown(), "\r\n", "\n")
	}
	shows := func(want int, line string, texts ...string) string {
		code, screen := typed(line)
		require.Equal(t, want, code, "%s\n%s", line, screen)
		for _, text := range texts {
			require.Contains(t, screen, text, line)
		}
		return screen
	}
	colour := regexp.MustCompile("\x1b\\[[0-9;]*m")
	rows := map[string]func(){
		"words": func() {
			require.Equal(t, shows(exitOK, "dlq list -q"), shows(exitOK, "dlq ls -q"))
		},
		"output": func() {
			for _, format := range []string{"table", "wide", "json", "jsonl", "yaml", "csv"} {
				shows(exitOK, "dlq list -o "+format, "orders")
			}
			shows(exitUsage, "dlq list -o xml", "json")
		},
		"picking values": func() {
			shows(exitOK, "dlq list --jq .[0].id", "5\n")
			shows(exitOK, "dlq show 3 --jq .id", "3\n")
			shows(exitUsage, "dlq list --jq .[")
		},
		"a table in a terminal": func() {
			for line := range strings.Lines(colour.ReplaceAllString(shows(exitOK, "dlq list", " ago"), "")) {
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
			shows(exitOK, "dlq list")
			shows(exitError, "dlq list --server http://127.0.0.1:1")
			shows(exitUsage, "dlq list --limit many")
			shows(exitNotFound, "dlq show 999")
			shows(exitNotFound, "dlq list --store missing.db", "there is no store missing.db")
			shows(exitPartial, "dlq park 1 999")
			shows(exitRefused, "dlq restore 2")
			for _, code := range []string{"0", "1", "2", "3", "4", "5", "130"} {
				shows(exitOK, "help exit-codes", " "+code+"  ")
			}
		},
		"watching": func() { // runs watch of a stopped run: integration/command, TestTerminal_WatchesARunThatStops
			shows(exitOK, "dlq redrive --handler pay --detach --yes --id watched")
			shows(exitOK, "runs pause watched")
			shows(exitOK, "runs watch watched", "to continue: redrive runs resume watched")
			shows(exitOK, "dlq tail --follow=false -n 2", "orders")
		},
		"Ctrl-C": func() { // and TestRedrive_InterruptAndResume; TestTerminal_InterruptAdjustResume
			shows(exitOK, "dlq redrive --handler pay --detach --yes --id other")
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
				shows(exitOK, line+" --dry-run")
			}
		},
		"a slip": func() {
			shows(exitUsage, "dql list", "did you mean redrive dlq?")
			shows(exitUsage, "dlq list --tpic orders", "did you mean --topic?")
		},
		"completion": func() {
			for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
				shows(exitOK, "completion "+shell, "__complete")
			}
			shows(exitOK, "__complete dlq list --topic i", "invoices")
			shows(exitOK, "__complete dlq show 3", "no customer")
			shows(exitOK, "__complete dlq list --fingerprint ", "bank: timeout after ?")
		},
		"colours": func() {
			require.Regexp(t, colour, shows(exitOK, "dlq list"))
			require.NotRegexp(t, colour, shows(exitOK, "dlq list --no-color"))
			_, stdout, stderr := command(t, "dlq", "list")
			require.NotRegexp(t, colour, stdout+stderr)
			for name, value := range map[string]string{"NO_COLOR": "1", "TERM": "dumb"} {
				before := os.Getenv(name)
				t.Setenv(name, value)
				require.NotRegexp(t, colour, shows(exitOK, "dlq list"), name)
				t.Setenv(name, before)
			}
		},
		"pager": func() { shows(exitOK, "dlq list --all", "orders") }, // PAGER is a program that fails
		"where to": func() {
			shows(exitError, "dlq list --server http://127.0.0.1:1", "127.0.0.1:1")
			shows(exitUsage, "dlq list --profile prod", "prod")
			defer t.Setenv("REDRIVE_STORE", "dead.db")
			defer t.Setenv("REDRIVE_SERVER", "")
			t.Setenv("REDRIVE_STORE", "")
			t.Setenv("REDRIVE_SERVER", "http://127.0.0.1:1")
			shows(exitError, "dlq list", "127.0.0.1:1")
			shows(exitOK, "dlq list --store dead.db", "orders")
		},
		"credentials": func() {
			shows(exitUsage, "dlq list --token secret", "unknown flag: --token")
			shows(exitUsage, "dlq list --server http://127.0.0.1:1 --token-file none", "none")
		},
		"time spans": func() {
			for _, span := range []string{"90m", "24h", "30d"} {
				shows(exitOK, "dlq list --older-than "+span)
			}
		},
	}
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
