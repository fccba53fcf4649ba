package sqlstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

var updateGolden = flag.Bool("update", false, "rewrite the golden files")

// recorder is a driver that records statements with their parameters, and returns prepared rows.
type recorder struct {
	log  strings.Builder
	rows map[string][]sqldriver.Value // by the beginning of the query
}

func (r *recorder) Connect(context.Context) (sqldriver.Conn, error) { return recorderConn{r}, nil }
func (r *recorder) Driver() sqldriver.Driver                        { return nil }

func (r *recorder) note(query string, args []sqldriver.NamedValue) {
	r.log.WriteString(query + "\n")
	for _, a := range args {
		switch v := a.Value.(type) {
		case int64:
			if v > 1<<40 {
				r.log.WriteString("\t#\n") // a token
				continue
			}
			fmt.Fprintf(&r.log, "\t%v\n", v)
		case time.Time:
			fmt.Fprintf(&r.log, "\t%s\n", v.UTC().Format(time.RFC3339Nano))
		case string, []byte:
			fmt.Fprintf(&r.log, "\t%q\n", v)
		default:
			fmt.Fprintf(&r.log, "\t%s\n", shown(v))
		}
	}
}

// shown dereferences the pointers of arrays.
func shown(v any) string {
	switch v := v.(type) {
	case []*string:
		return fmt.Sprintf("%q", values(v))
	case []*int64:
		return fmt.Sprint(values(v))
	case []*time.Time:
		return fmt.Sprint(values(v))
	case [][]byte:
		list := make([]any, len(v))
		for i, b := range v {
			if b != nil {
				list[i] = b
			}
		}
		return fmt.Sprintf("%q", list)
	default:
		return fmt.Sprint(v)
	}
}

func values[T any](pointers []*T) []any {
	list := make([]any, len(pointers))
	for i, p := range pointers {
		if p != nil {
			list[i] = *p
		}
	}
	return list
}

type recorderConn struct{ *recorder }

func (c recorderConn) Prepare(string) (sqldriver.Stmt, error)        { return nil, sqldriver.ErrSkip }
func (c recorderConn) Close() error                                  { return nil }
func (c recorderConn) Begin() (sqldriver.Tx, error)                  { return c, nil }
func (c recorderConn) Commit() error                                 { return nil }
func (c recorderConn) Rollback() error                               { return nil }
func (c recorderConn) CheckNamedValue(v *sqldriver.NamedValue) error { return checkPlain(v) }
func (c recorderConn) BeginTx(context.Context, sqldriver.TxOptions) (sqldriver.Tx, error) {
	return c, nil
}

// checkPlain converts parameters like database/sql, but leaves arrays alone.
func checkPlain(v *sqldriver.NamedValue) error {
	if plain, err := sqldriver.DefaultParameterConverter.ConvertValue(v.Value); err == nil {
		v.Value = plain
	}
	return nil
}

func (c recorderConn) ExecContext(_ context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Result,
	error,
) {
	c.note(query, args)
	return sqldriver.RowsAffected(1), nil
}

func (c recorderConn) QueryContext(_ context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Rows,
	error,
) {
	c.note(query, args)
	for prefix, row := range c.rows {
		if strings.HasPrefix(query, prefix) {
			return &recordedRows{columns: len(row), row: row}, nil
		}
	}
	return &recordedRows{columns: 1}, nil
}

type recordedRows struct {
	columns int
	row     []sqldriver.Value
}

func (r *recordedRows) Columns() []string { return make([]string, r.columns) }
func (r *recordedRows) Close() error      { return nil }

func (r *recordedRows) Next(to []sqldriver.Value) error {
	if r.row == nil {
		return io.EOF
	}
	copy(to, r.row)
	r.row = nil
	return nil
}

// goldenLetter returns a letter with a value in every field, or only in the usual ones.
func goldenLetter(n int, full bool) *dlq.Entry {
	at := time.Date(2026, 5, 4, 3, 2, n, 123456000, time.UTC)
	e := &dlq.Entry{
		Key: driver.Key{byte(n)}, EventID: fmt.Sprint("event-", n), EventType: "order.paid", Handler: "bill",
		Reason:       "exhausted",
		ErrorMessage: "refused", Cause: "refused", Fingerprint: "f1", Attempts: 4, Status: dlq.Pending, Version: 1,
		SeenCount: 1, RedriveBudget: 3,
		Origin:    envelope.Origin{Broker: "kafka", Topic: "orders", Consumer: "billing"},
		CreatedAt: at, FirstFailureAt: at.Add(-time.Minute), DiedAt: at, LastSeenAt: at, ChangedAt: at, ChangedBy: "app",
		Body: &dlq.Body{UUID: "u", Payload: []byte(`{"a":1}`), Headers: map[string]string{"k": "v"}},
	}
	e.Size = int64(len(e.Body.Payload))
	if !full {
		return e
	}
	partition, offset := int32(3), int64(99)
	e.SourceTable, e.SourceID, e.CorrelationID = "orders", "source-7", "correlation-7"
	e.Origin.Exchange, e.Origin.RoutingKey, e.Origin.Key, e.Origin.Position = "ex", "rk\xff", []byte("key"), "3/99"
	e.Origin.Partition, e.Origin.Offset, e.Origin.Timestamp = &partition, &offset, at.Add(-time.Hour)
	e.ErrorCode, e.ErrorClass, e.Rule = "E1", "*net.OpError", "network"
	e.Body.ContentType, e.Body.Trace = "application/json", "stack"
	return e
}

func goldenChanged(e *dlq.Entry) *dlq.Entry {
	c, at := *e, e.CreatedAt.Add(24*time.Hour)
	c.Handler, c.Reason, c.ErrorMessage, c.ErrorCode, c.ErrorClass, c.Rule = "h2", "permanent", "other", "E2", "class",
		"rule"
	c.Fingerprint, c.Attempts, c.Status, c.Version, c.RedriveCount, c.DeathRedrive, c.SeenCount = "f2", 5, dlq.Resolved, 7,
		2, 1, 3
	c.LeaseUntil, c.Run, c.DiedAt, c.LastSeenAt, c.LastRedriveAt, c.SucceededAt = at, "run-1", at, at, at, at
	c.ResolvedAt, c.ResolvedBy, c.ChangedAt, c.ChangedBy, c.Revision, c.Size = at, "ana", at, "ana", 1, 17
	return &c
}

// Every statement that names the columns of a dead letter, as sent to each database: they stay the same, however they
// are built.
func TestStatements_Golden(t *testing.T) {
	for _, d := range []dialect{sqlite{}, mysql{}, postgres{}} {
		t.Run(string(d.name()), func(t *testing.T) {
			few, full := goldenLetter(1, false), goldenLetter(2, true)
			r := &recorder{rows: map[string][]sqldriver.Value{
				"SELECT min(id) FROM " + d.archive(): {int64(7)},
				"INSERT INTO dlq_keys":               {int64(2), full.Key[:]},
			}}
			db := sql.OpenDB(r)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			s := &Store{dialect: d, write: db, read: db, closed: make(chan struct{})}
			sendStatements(t, r, s, few, full)

			path := filepath.Join("testdata", "statements."+string(d.name())+".golden")
			if *updateGolden {
				require.NoError(t, os.MkdirAll("testdata", 0o750))
				require.NoError(t, os.WriteFile(path, []byte(r.log.String()), 0o600))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), r.log.String())
		})
	}
}

// sendStatements sends every statement that names the columns.
func sendStatements(t *testing.T, r *recorder, s *Store, few, full *dlq.Entry) {
	t.Helper()
	d, db := s.dialect, s.write
	section := func(name string) { fmt.Fprintf(&r.log, "\n-- %s\n", name) }
	inTx := func(name string, fn func(tx *sql.Tx) error) {
		section(name)
		require.NoError(t, durably(t.Context(), d.name(), db, fn))
	}
	few.ID, full.ID = 1, 2
	rows, err := s.makeRows([]*dlq.Entry{few, full})
	require.NoError(t, err)

	inTx("insert", func(tx *sql.Tx) error {
		entries := [][]any{rows[0].entry, rows[1].entry}
		if _, err := d.insertEntries(t.Context(), s, tx, entries); err != nil {
			return err
		}
		return s.insertBodies(t.Context(), tx, [][]any{rows[0].body, rows[1].body})
	})
	if short, ok := d.(newPutter); ok {
		section("new letters")
		_, err := short.putNew(t.Context(), s, rows[:1])
		require.ErrorIs(t, err, sql.ErrNoRows)
		_, err = short.putNew(t.Context(), s, rows)
		require.ErrorIs(t, err, sql.ErrNoRows)
	}
	inTx("lock", func(tx *sql.Tx) error {
		_, err := s.lockEntries(t.Context(), tx, []int64{2, 1})
		return err
	})
	inTx("update", func(tx *sql.Tx) error {
		all := changes{store: s, tx: tx, changed: []changed{{few, goldenChanged(few)}, {full, goldenChanged(full)}}}
		return all.updateEntries(t.Context())
	})
	section("read")
	_, err = s.Get(t.Context(), 1)
	require.ErrorIs(t, err, dlq.ErrNotFound)
	_, err = s.List(t.Context(), dlq.Filter{Topic: "orders", SourceID: "source-7", From: few.CreatedAt},
		dlq.Page{Limit: 10})
	require.NoError(t, err)
	inTx("purge", func(tx *sql.Tx) error {
		p, err := (dlq.Purge{Actor: "ana", At: few.CreatedAt, ClosedBefore: few.CreatedAt}).Resolve()
		require.NoError(t, err)
		if _, err := s.purgeTx(t.Context(), tx, p); err != nil {
			return err
		}
		return s.removeEntries(t.Context(), tx, []int64{1, 2}, p)
	})
	inTx("unarchive", func(tx *sql.Tx) error {
		_, err := s.unarchiveSome(t.Context(), tx, "id IN (?)", []any{int64(7)})
		return err
	})
	inTx("recount", func(tx *sql.Tx) error {
		_, err := s.countEntries(t.Context(), tx)
		return err
	})
}
