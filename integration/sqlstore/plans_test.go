package sqlstore_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// planDriver is pgx with a collector for the plans that the server's auto_explain sends to the client.
type planDriver struct {
	mu    sync.Mutex
	plans []string
}

var plans = &planDriver{}

func init() { sql.Register("pgxplans", plans) }

// explained are the parameters that make a store use planDriver.
const explained = "driver=pgxplans&options=-c%20session_preload_libraries=auto_explain%20-c%20auto_explain.log_min_duration=0" +
	"%20-c%20auto_explain.log_analyze=on%20-c%20auto_explain.log_timing=off%20-c%20auto_explain.log_buffers=on%20-c%20client_min_messages=log"

// Open implements sqldriver.Driver.
func (d *planDriver) Open(dsn string) (sqldriver.Conn, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.plans = append(d.plans, n.Message)
	}
	return stdlib.GetConnector(*cfg).Connect(context.Background())
}

// of runs a call and returns the plans of its statements.
func (d *planDriver) of(call func()) []string {
	d.mu.Lock()
	d.plans = nil
	d.mu.Unlock()
	call()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.plans
}

var (
	bigScan = regexp.MustCompile(`Seq Scan on (dlq_entries|dlq_bodies|dlq_keys|dlq_audit)\b`)
	buffers = regexp.MustCompile(`Buffers: shared (?:hit=(\d+))? ?(?:read=(\d+))?`)
)

// pagesOf returns how many pages of the database a plan touched, from its root node, which includes all others.
func pagesOf(t *testing.T, plan string) int {
	t.Helper()
	found := buffers.FindStringSubmatch(plan)
	if found == nil {
		return 0
	}
	n := 0
	for _, digits := range found[1:] {
		if digits != "" {
			k, err := strconv.Atoi(digits)
			require.NoError(t, err)
			n += k
		}
	}
	return n
}

// maxPages is how many pages a query may touch, in all its statements, of a table with 20,000 pages or more.
const maxPages = 150

// read is one query to a store.
type read struct {
	name string
	call func(ctx context.Context, s *sqlstore.Store) (rows int, err error)
}

// reads returns the queries of an operator and of a dashboard, on total rows that end at end.
func reads(total int, end time.Time) []read {
	list := func(f dlq.Filter, p dlq.Page) func(context.Context, *sqlstore.Store) (int, error) {
		return func(ctx context.Context, s *sqlstore.Store) (int, error) {
			l, err := s.List(ctx, f, p)
			return len(l.Entries), err
		}
	}
	pending := dlq.Filter{Statuses: []dlq.Status{dlq.Pending}}
	deep := wire.Cursor{Order: driver.NewestFirst, At: end.Add(-month / 4), ID: 1 << 40}.String()
	cpf := dlq.Filter{CauseText: "cpf", From: end.Add(-month + time.Hour + time.Minute)}
	pendingCPF := dlq.Filter{CauseText: "cpf", From: end.Add(-month + time.Hour), Statuses: pending.Statuses}
	row := total * 3 / 7
	return []read{
		{"pending page", list(pending, dlq.Page{})},
		{"pending page, oldest first", list(pending, dlq.Page{Order: driver.OldestFirst})},
		{"deep page by cursor", list(pending, dlq.Page{After: deep})},
		{"page of everything", list(dlq.Filter{}, dlq.Page{})},
		{"page of a topic", list(dlq.Filter{Topic: "employee-update"}, dlq.Page{})},
		{"page of an event type", list(dlq.Filter{EventType: "employee-update"}, dlq.Page{})},
		{"CPF invalid, last month: page", list(cpf, dlq.Page{})},
		{"CPF invalid, last month, pending: page", list(pendingCPF, dlq.Page{})},
		{"CPF invalid, last month: count", func(ctx context.Context, s *sqlstore.Store) (int, error) {
			n, err := s.Count(ctx, cpf, 0)
			return int(n), err
		}},
		{"count of pending", func(ctx context.Context, s *sqlstore.Store) (int, error) {
			n, err := s.Count(ctx, pending, 0)
			return int(n), err
		}},
		{"top causes", func(ctx context.Context, s *sqlstore.Store) (int, error) {
			groups, err := s.Groups(ctx, dlq.GroupQuery{Status: dlq.Pending})
			return len(groups), err
		}},
		{"top causes with their curves", func(ctx context.Context, s *sqlstore.Store) (int, error) {
			groups, err := s.Groups(ctx, dlq.GroupQuery{Status: dlq.Pending, TrendSince: end.Add(-7 * 24 * time.Hour)})
			return len(groups), err
		}},
		{"statistics with the hourly curve", func(ctx context.Context, s *sqlstore.Store) (int, error) {
			stats, err := s.Stats(ctx, dlq.StatsQuery{})
			return len(stats.Hourly), err
		}},
		{"by event id", list(dlq.Filter{EventID: fmt.Sprintf("event-%d", row)}, dlq.Page{})},
		{"by source id", list(dlq.Filter{SourceID: fmt.Sprintf("E-%d", row)}, dlq.Page{})},
		{"by correlation id", list(dlq.Filter{CorrelationID: correlation(row)}, dlq.Page{})},
	}
}

// fewAmongMany stores some letters with a rare topic, event type, cause and run in the middle of the table, and queries
// them: no other index has a page of them within a few hundred rows.
func fewAmongMany(t *testing.T, s *sqlstore.Store, total int, end time.Time) []read {
	t.Helper()
	var ids []int64
	for n := range 5 {
		receipts, err := s.Put(t.Context(), letter(total+n, end.Add(-month/2), failed("no such company", "payroll-close"),
			func(d *envelope.DeadLetter) {
				d.Class = "*payroll.CompanyError"
			}))
		require.NoError(t, err)
		ids = append(ids, receipts[0].ID)
	}
	results, err := s.Change(t.Context(), driver.Change{
		Action: driver.ActionRedrive, IDs: ids[:3], Actor: "ana", At: end, Lease: time.Hour, Run: "run-of-three",
	})
	require.NoError(t, err)
	cause := results[0].Entry.Fingerprint
	page := func(name string, f dlq.Filter, want int) read {
		return read{name, func(ctx context.Context, s *sqlstore.Store) (int, error) {
			l, err := s.List(ctx, f, dlq.Page{})
			if err == nil && len(l.Entries) != want {
				err = fmt.Errorf("%d entries, want %d", len(l.Entries), want)
			}
			return len(l.Entries), err
		}}
	}
	return []read{
		page("page of a rare topic", dlq.Filter{Topic: "payroll-close"}, len(ids)),
		page("page of a rare event type", dlq.Filter{EventType: "payroll-close"}, len(ids)),
		page("page of a rare cause", dlq.Filter{Fingerprint: cause}, len(ids)),
		page("page of a rare cause by its text, last month", dlq.Filter{CauseText: "such company", From: end.Add(-month)},
			len(ids)),
		page("page of a run", dlq.Filter{Run: "run-of-three"}, 3),
	}
}

// No query of a dashboard scans the table, whatever its size: each touches a few pages. (The targets are in
// milliseconds, which depend on the machine's load.)
func TestPostgres_Plans(t *testing.T) {
	url := servers["PostgreSQL"](t)
	db := openDB(t, url)
	filler := openStore(t, url)
	total := rowCount(t)
	end := fill(t, filler, db, total)
	seldom := fewAmongMany(t, filler, total, end)
	require.NoError(t, filler.Close())

	s := openStore(t, with(url, explained))
	defer s.Close()
	questions := append(reads(total, end), seldom...)
	for _, statement := range trigramIndex {
		run(t, db, statement)
	}
	rare := dlq.Filter{ErrorText: `Pay/1707"`} // every 2,000th
	questions = append(questions, read{
		"rare word in the error, with the trigram index",
		func(ctx context.Context, s *sqlstore.Store) (int, error) {
			l, err := s.List(ctx, rare, dlq.Page{})
			return len(l.Entries), err
		},
	})
	ask(t, s, questions)

	// The same holds for tables that became partitions, next to those of this month and the next.
	require.NoError(t, openStore(t, with(url, byMonth)).Close())
	_, err := db.ExecContext(t.Context(), "ANALYZE")
	require.NoError(t, err)
	require.Equal(t, [][]any{{"p"}}, rowsOf(t, db, "SELECT relkind::text FROM pg_class WHERE relname = 'dlq_entries'"))
	t.Run("by month", func(t *testing.T) { ask(t, s, questions) })
}

// trigramIndex are the statements for frequent searches in errors, from the documentation of sqlstore.
var trigramIndex = []string{
	"CREATE EXTENSION pg_trgm",
	"CREATE INDEX CONCURRENTLY trigrams ON dlq_entries USING gin (error_message gin_trgm_ops)",
	"ALTER TABLE dlq_entries ALTER error_message SET STATISTICS 1000",
	"ANALYZE dlq_entries (error_message)",
}

// ask runs every query often enough to get a generic plan, and checks the plans.
func ask(t *testing.T, s *sqlstore.Store, questions []read) {
	t.Helper()
	for _, r := range questions {
		t.Run(r.name, func(t *testing.T) {
			// from the sixth execution on, a prepared statement may have a generic plan
			for round := range 8 {
				var took time.Duration
				made := plans.of(func() {
					began := time.Now()
					n, err := r.call(t.Context(), s)
					took = time.Since(began)
					require.NoError(t, err)
					require.NotZero(t, n)
				})
				require.NotEmpty(t, made)
				touched := 0
				for _, plan := range made {
					require.NotRegexp(t, bigScan, plan)
					touched += pagesOf(t, plan)
				}
				require.LessOrEqual(t, touched, maxPages, "%s", strings.Join(made, "\n"))
				if round == 7 {
					t.Logf("%d statements, %d pages, %s with explain", len(made), touched, took)
				}
			}
		})
	}
}
