package main

import (
	"bytes"
	"context"
	"database/sql"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/examples/internal/demo"
)

type result struct {
	code           int
	stdout, stderr string
	file           string
}

// orders runs the program in a separate directory, as a new user would.
func orders(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dead.db")
	t.Setenv("DLQ_URL", "sqlite:"+file)
	return again(t, file, stdin, args...)
}

func again(t *testing.T, file, stdin string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, strings.NewReader(stdin), &stdout, &stderr)
	return result{code, stdout.String(), stderr.String(), file}
}

func rows(t *testing.T, file, query string) (n int) {
	t.Helper()
	db, err := sql.Open("sqlite", file)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

// With the whole file, every order has exactly one outcome, each kind of fault has the expected one, and orders that
// died because the acquirer was down are processed when they are redriven.
func TestOrders_LedgerBalances(t *testing.T) {
	r := orders(t, "", "-speed", "100")
	require.Zero(t, r.code, r.stderr)
	require.Regexp(t, `charge\s+2400\s+2240\s+148\s+12\s+0\s+balanced`, r.stdout)
	require.Regexp(t, `loyalty\s+2240\s+2231\s+9\s+0\s+0\s+balanced`, r.stdout)
	for _, cause := range []string{
		`permanent +validation: customer's tax number is invalid`,
		`permanent +validation: customer is younger than`,
		`permanent +validation: delivery date is before`,
		`permanent +envelope: data is not a main.Order`,
		`exhausted +503 +payment: http status`,
		`loyalty +panic +panic: runtime error`,
	} {
		require.Regexp(t, cause, r.stdout)
	}
	require.Contains(t, r.stdout, "The 157 dead letters are in the SQLite file "+r.file)
	require.Equal(t, 157, rows(t, r.file, `SELECT COUNT(*) FROM dlq_events WHERE status = 'PENDING'`))

	r = again(t, r.file, "", "-redrive")
	require.Zero(t, r.code, r.stderr)
	require.Regexp(t, `charge\s+10\s+10\s+0\s+0\s+0\s+balanced`, r.stdout)
	require.Equal(t, 10, rows(t, r.file, `SELECT COUNT(*) FROM dlq_events WHERE status = 'RESOLVED'`))
	require.Equal(t, 147, rows(t, r.file, `SELECT COUNT(*) FROM dlq_events WHERE status = 'PENDING'`))
}

func TestOrders_ReadsStandardInput(t *testing.T) {
	good := string(ordersFile[:bytes.IndexByte(ordersFile, '\n')])
	r := orders(t, good+"\n\nnot an order\n\x00\xff\n", "-")
	require.Zero(t, r.code, r.stderr)
	require.Regexp(t, `charge\s+3\s+1\s+2\s+0\s+0\s+balanced`, r.stdout)
	require.Equal(t, 1, rows(t, r.file, `SELECT COUNT(*) FROM dlq_bodies WHERE hex(payload) = '00FF'`))
}

func TestOrders_ReadsTheFileGiven(t *testing.T) {
	input := filepath.Join(t.TempDir(), "few.ndjson")
	require.NoError(t, os.WriteFile(input, ordersFile[:bytes.IndexByte(ordersFile, '\n')], 0o600))
	r := orders(t, "", input)
	require.Zero(t, r.code, r.stderr)
	require.Regexp(t, `charge\s+1\s+1\s+0\s+0\s+0\s+balanced`, r.stdout)
}

func TestOrders_BadInput(t *testing.T) {
	for name, tc := range map[string]struct {
		broker string
		args   []string
		code   int
		says   []string
	}{
		"no such file":           {"", []string{"nowhere.ndjson"}, demo.ExitFailed, []string{"read orders", "nowhere.ndjson"}},
		"unknown broker scheme":  {"gopher://localhost", nil, demo.ExitFailed, []string{`"gopher"`, "mem"}},
		"password is not shown":  {"gopher://me:secret@localhost", nil, demo.ExitFailed, []string{"gopher"}},
		"impossible speed":       {"", []string{"-speed", "0"}, demo.ExitUsage, []string{"-speed", "1 is real time"}},
		"impossible concurrency": {"", []string{"-concurrency", "0"}, demo.ExitUsage, []string{"-concurrency"}},
		"two files":              {"", []string{"a", "b"}, demo.ExitUsage, []string{"2 input files"}},
		"unknown flag":           {"", []string{"-fast"}, demo.ExitUsage, []string{"usage: orders"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("BROKER_URL", tc.broker)
			r := orders(t, "", tc.args...)
			require.Equal(t, tc.code, r.code, r.stderr)
			for _, text := range tc.says {
				require.Contains(t, r.stderr, text)
			}
			require.NotContains(t, r.stderr+r.stdout, "secret")
		})
	}
}

// When it is interrupted, the program stops reading, lets running handlers finish, and prints which messages are
// waiting.
func TestOrders_Interrupted(t *testing.T) {
	t.Setenv("DLQ_URL", "sqlite:"+filepath.Join(t.TempDir(), "dead.db"))
	ctx, cancel := context.WithCancel(t.Context())
	stdin, keyboard := io.Pipe() // never ends
	go func() {
		for line := range bytes.Lines(ordersFile[:bytes.Index(ordersFile, []byte("tok_acquirer_down"))+1000]) {
			_, _ = keyboard.Write(line)
		}
		cancel()
	}()
	var stdout, stderr bytes.Buffer
	code := run(ctx, []string{"-speed", "0.001", "-"}, stdin, &stdout, &stderr)
	require.Equal(t, demo.ExitDone, code, stderr.String())
	require.Regexp(t, `charge\s+\d+\s+\d+\s+\d+\s+\d+\s+[1-9]\d*\s+balanced`, stdout.String())
	require.Contains(t, stdout.String(), "interrupted")
}
