package main

import (
	"bytes"
	"database/sql"
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/examples/internal/demo"
)

type result struct {
	code           int
	stdout, stderr string
}

// employees runs the program with a separate store, as a new user would.
func employees(t *testing.T, stdin string, args ...string) (r result, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "dead.db")
	t.Setenv("DLQ_URL", "sqlite:"+file+"?synchronous=normal") // a power failure does not matter here
	return again(t, stdin, args...), file
}

func again(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, strings.NewReader(stdin), &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

func value[T any](t *testing.T, file, query string) (v T) {
	t.Helper()
	db, err := sql.Open("sqlite", file)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&v))
	return v
}

// 1,000 invalid events are 1,000 rows, and the other 2,000 are processed.
func TestEmployees_EveryInvalidEventIsARow(t *testing.T) {
	r, file := employees(t, "", "-speed", "100")
	require.Zero(t, r.code, r.stdout+r.stderr)
	require.Regexp(t, `employee-create\s+1814\s+1215\s+599\s+0`, r.stdout)
	require.Regexp(t, `employee-update\s+926\s+605\s+321\s+0`, r.stdout)
	require.Regexp(t, `employee-delete\s+260\s+180\s+80\s+0`, r.stdout)
	require.Contains(t, r.stdout, "1000 invalid events, 1000 rows in dlq_events")

	for query, want := range map[string]int{
		`status = 'PENDING'`:                         1000,
		`error_code = 'cpf'`:                         500, // validation
		`error_code = 'age'`:                         200, // validation
		`error_code = 'dates'`:                       200, // business
		`event_payload IS NULL`:                      100, // format: not JSON, kept in payload byte for byte
		`attempts <> 1`:                              0,   // validation is never retried
		`reason <> 'permanent'`:                      0,
		`source_id IS NULL`:                          100,
		`event_type = kafka_topic`:                   1000,
		`error_message LIKE 'Falha na validação: %'`: 900,
	} {
		require.Equal(t, want, value[int](t, file, `SELECT COUNT(*) FROM dlq_events WHERE `+query), query)
	}
	require.Equal(t, "employees", value[string](t, file,
		`SELECT DISTINCT source_table FROM dlq_events WHERE source_table <> ''`))
	require.Equal(t, 1, value[int](t, file, `SELECT COUNT(DISTINCT correlation_id) FROM dlq_events`))
}

// The bad line to Manaus costs two retries per event, but loses no event.
func TestEmployees_TechnicalErrorsAreRetried(t *testing.T) {
	const hire = `{"topic":"employee-create","key":"E1","payload":"{\"id\":\"E1\",\"version\":1,\"name\":\"Ana ` +
		`Lima\",\"cpf\":\"529.982.247-25\",\"birth_date\":\"1990-01-02\",\"hired_on\":\"2020-03-04\",\"unit\":\"Manaus\"}"}`
	r, file := employees(t, hire, "-speed", "1000", "-")
	require.Zero(t, r.code, r.stdout+r.stderr)
	require.Contains(t, r.stdout, ", 2 retries:")
	require.Regexp(t, `employee-create\s+1\s+1\s+0\s+0`, r.stdout)
	require.Contains(t, r.stdout, "1 employees on the payroll")
	require.Zero(t, value[int](t, file, `SELECT COUNT(*) FROM dlq_events`))
}

// An event is corrected, redriven and processed; one that is still invalid returns to the same entry.
func TestEmployees_CorrectAndRedrive(t *testing.T) {
	few := string(bytes.Join(bytes.SplitAfterN(dumpFile, []byte("\n"), 31)[:30], nil)) // 30 events
	r, file := employees(t, few, "-")
	require.Zero(t, r.code, r.stdout+r.stderr)
	dead := value[int](t, file, `SELECT COUNT(*) FROM dlq_events`)
	hint := regexp.MustCompile(`-fix (EMP-\d+) -set cpf=529.982.247-25`).FindStringSubmatch(r.stdout)
	require.NotNil(t, hint, r.stdout)
	entry := hint[1]

	r = again(t, "", "-fix", entry, "-set", "cpf=111.222.333-44")
	require.Equal(t, demo.ExitFailed, r.code, r.stdout+r.stderr)
	require.Contains(t, r.stdout, entry+" is PENDING after 1 redrive(s).\nIt died again of: Falha na validação: CPF "+
		"inválido")

	r = again(t, "", "-fix", entry, "-set", "cpf=529.982.247-25")
	require.Zero(t, r.code, r.stdout+r.stderr)
	require.Contains(t, r.stdout, entry+" is RESOLVED after 2 redrive(s).")
	require.Contains(t, r.stdout, "1 employees on the payroll")
	require.Equal(t, dead-1, value[int](t, file, `SELECT COUNT(*) FROM dlq_events WHERE status = 'PENDING'`))
	require.Equal(t, "redrive", value[string](t, file, `SELECT resolved_by FROM dlq_events WHERE source_id = '`+entry+`'`))
	require.Equal(t, dead, value[int](t, file, `SELECT COUNT(*) FROM dlq_events`), "a redrive makes no second row")
	require.Equal(t, 3, value[int](t, file,
		`SELECT COUNT(*) FROM dlq_bodies WHERE entry_id = (SELECT id FROM dlq_events WHERE source_id = '`+entry+`')`),
		"what died first is kept")

	r = again(t, "", "-fix", entry, "-set", "cpf=529.982.247-25")
	require.Equal(t, demo.ExitFailed, r.code)
	require.Contains(t, r.stderr, "RESOLVED", "what is done is not done again")
}

func TestEmployees_BadInput(t *testing.T) {
	for name, tc := range map[string]struct {
		broker, stdin string
		args          []string
		code          int
		says          []string
	}{
		"no such file": {"", "", []string{"nowhere.ndjson"}, demo.ExitFailed, []string{"read events", "nowhere.ndjson"}},
		"not a dump":   {"", "hello", []string{"-"}, demo.ExitFailed, []string{"record 1", "kcat -J"}},
		"another topic": {
			"", `{"topic":"orders"}`,
			[]string{"-"},
			demo.ExitFailed,
			[]string{"record 1", `"orders"`, "employee-create"},
		},
		"unknown broker scheme": {"gopher://me:secret@localhost", "", nil, demo.ExitFailed, []string{`"gopher"`, "mem"}},
		"impossible speed":      {"", "", []string{"-speed", "0"}, demo.ExitUsage, []string{"-speed", "1 is real time"}},
		"no concurrency":        {"", "", []string{"-concurrency", "0"}, demo.ExitUsage, []string{"-concurrency"}},
		"fix what":              {"", "", []string{"-set", "cpf=1"}, demo.ExitUsage, []string{"-fix and -set go together"}},
		"fix how":               {"", "", []string{"-fix", "1"}, demo.ExitUsage, []string{"-fix and -set go together"}},
		"set nothing":           {"", "", []string{"-fix", "1", "-set", "cpf"}, demo.ExitUsage, []string{"field=value"}},
		"no such entry":         {"", "", []string{"-fix", "1", "-set", "cpf=1"}, demo.ExitFailed, []string{"not found"}},
		"two files":             {"", "", []string{"a", "b"}, demo.ExitUsage, []string{"2 input files"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("BROKER_URL", tc.broker)
			r, _ := employees(t, tc.stdin, tc.args...)
			require.Equal(t, tc.code, r.code, r.stdout+r.stderr)
			for _, text := range tc.says {
				require.Contains(t, r.stderr, text)
			}
			require.NotContains(t, r.stderr+r.stdout, "secret")
		})
	}
}

// A payload that is not a JSON object has no fields to set: the program reports that and changes nothing.
func TestEmployees_FixNeedsAnObject(t *testing.T) {
	r, file := employees(t, `{"topic":"employee-create","key":"E1","payload":"<employee/>"}`, "-")
	require.Zero(t, r.code, r.stdout+r.stderr)
	r = again(t, "", "-fix", "1", "-set", "cpf=529.982.247-25")
	require.Equal(t, demo.ExitFailed, r.code)
	require.Contains(t, r.stderr, "entry 1: fields can only be set in a JSON object")
	require.Equal(t, "PENDING", value[string](t, file, `SELECT status FROM dlq_events`))
	require.Zero(t, value[int](t, file, `SELECT retry_count FROM dlq_events`))
}

func TestEmployees_Help(t *testing.T) {
	var stderr bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"-h"}, nil, io.Discard, &stderr))
	require.Contains(t, stderr.String(), "DLQ_URL (default sqlite:employees-dead-letters.db)")
}
