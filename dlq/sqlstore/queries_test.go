package sqlstore_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
)

// The five queries of the system that dlq_events replaces, from its handbook for PostgreSQL. For SQLite only the date
// functions differ; the comment after such a line has the original.
const (
	queryPending = `
SELECT id, event_id, source_id, error_message, created_at
FROM dlq_events
WHERE status = 'PENDING'
ORDER BY created_at DESC`

	queryTopErrors = `
SELECT error_message, COUNT(*) AS occurrences
FROM dlq_events
WHERE status = 'PENDING'
GROUP BY error_message
ORDER BY occurrences DESC
LIMIT 10`

	queryPerHour = `
SELECT strftime('%Y-%m-%d %H:00:00', created_at) AS hour, -- DATE_TRUNC('hour', created_at)
       COUNT(*) AS errors
FROM dlq_events
WHERE created_at >= datetime('now', '-7 days')            -- NOW() - INTERVAL '7 days'
GROUP BY hour
ORDER BY hour`

	queryByType = `
SELECT event_type,
       COUNT(*) AS total,
       COUNT(CASE WHEN status = 'PENDING' THEN 1 END) AS pending,
       COUNT(CASE WHEN status = 'RESOLVED' THEN 1 END) AS resolved
FROM dlq_events
GROUP BY event_type
ORDER BY total DESC`

	queryResolution = `
SELECT AVG((julianday(resolved_at) - julianday(created_at)) * 24) AS hours -- EXTRACT(EPOCH FROM (resolved_at - created_at)) / 3600
FROM dlq_events
WHERE status = 'RESOLVED' AND resolved_at IS NOT NULL`
)

// newFile opens a store on a new file, and the file itself as an operator's SQL client does.
func newFile(t testing.TB, params string) (*sqlstore.Store, *sql.DB) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dead.db")
	s := open(t, "sqlite:"+path+params)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	db, err := sql.Open("sqlite", "file:"+path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return s, db
}

func entry(n int, at time.Time, edits ...func(*envelope.DeadLetter)) *dlq.Entry {
	m := message.NewMessage("u", fmt.Appendf(nil, `{"employee":{"cpf":"%011d","name":"Ana"},"n":%d}`, n, n))
	m.Metadata[envelope.KeyMessageID] = fmt.Sprintf("event-%d", n)
	m.Metadata["source_id"] = fmt.Sprintf("E-%d", n)
	m.Metadata["source_table"] = "employee"
	d := &envelope.DeadLetter{
		Message: m, Reason: envelope.ReasonPermanent, Err: envelope.Error{Message: "Falha na validação: CPF inválido"},
		Class: "*esocial.ValidationError", Handler: "validate",
		Origin: envelope.Origin{Broker: "kafka", Topic: "employee-create", Consumer: "esocial", Position: strconv.Itoa(n)},
		At:     at, Attempts: 1,
	}
	for _, edit := range edits {
		edit(d)
	}
	return dlq.NewEntry(d)
}

func rowsOf(t *testing.T, db *sql.DB, query string, args ...any) [][]any {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), query, args...)
	require.NoError(t, err)
	defer rows.Close()
	columns, err := rows.Columns()
	require.NoError(t, err)
	var all [][]any
	for rows.Next() {
		values, targets := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			targets[i] = &values[i]
		}
		require.NoError(t, rows.Scan(targets...))
		all = append(all, values)
	}
	require.NoError(t, rows.Err())
	return all
}

func TestDlqEvents_TheFiveQueries(t *testing.T) {
	t.Parallel()
	s, db := newFile(t, "")
	now := time.Now().UTC().Truncate(time.Hour)
	age := func(d *envelope.DeadLetter) {
		d.Err.Message, d.Origin.Topic = "Falha na validação: idade < 16", "employee-update"
	}
	_, err := s.Put(t.Context(),
		entry(1, now.Add(-time.Hour)), entry(2, now.Add(-2*time.Hour)), entry(3, now.Add(-2*time.Hour+time.Minute)),
		entry(4, now.Add(-3*time.Hour), age), entry(5, now.Add(-30*24*time.Hour), age), entry(6, now.Add(-30*24*time.Hour)))
	require.NoError(t, err)
	for id, hours := range map[int64]time.Duration{5: 2, 6: 4} {
		results, err := s.Change(t.Context(), driver.Change{
			Action: driver.ActionResolve, IDs: []int64{id}, Actor: "ana", At: now.Add(-30*24*time.Hour + hours*time.Hour),
		})
		require.NoError(t, err)
		require.NoError(t, results[0].Err)
	}

	pending := rowsOf(t, db, queryPending)
	require.Len(t, pending, 4)
	require.Equal(t, []any{int64(1), "event-1", "E-1", "Falha na validação: CPF inválido"}, pending[0][:4])
	require.Equal(t, int64(4), pending[3][0])
	require.Equal(t, [][]any{
		{"Falha na validação: CPF inválido", int64(3)}, {"Falha na validação: idade < 16", int64(1)},
	}, rowsOf(t, db, queryTopErrors))
	const hour = "2006-01-02 15:00:00"
	require.Equal(t, [][]any{
		{now.Add(-3 * time.Hour).Format(hour), int64(1)},
		{now.Add(-2 * time.Hour).Format(hour), int64(2)},
		{now.Add(-time.Hour).Format(hour), int64(1)},
	}, rowsOf(t, db, queryPerHour))
	require.Equal(t, [][]any{
		{"employee-create", int64(4), int64(3), int64(1)}, {"employee-update", int64(2), int64(1), int64(1)},
	}, rowsOf(t, db, queryByType))
	require.InDelta(t, 3.0, rowsOf(t, db, queryResolution)[0][0], 0.001)
}

// The columns, under their names and in their order, ours behind them, and the indexes.
func TestDlqEvents_ColumnsAndIndexes(t *testing.T) {
	t.Parallel()
	_, db := newFile(t, "")
	rows, err := db.QueryContext(t.Context(), "SELECT * FROM dlq_events")
	require.NoError(t, err)
	defer rows.Close()
	columns, err := rows.Columns()
	require.NoError(t, err)
	require.NoError(t, rows.Err())
	require.Equal(t, []string{
		"id", "event_id", "event_type", "source_table", "source_id", "event_payload", "error_message", "stack_trace",
		"retry_count",
		"max_retries", "status", "created_at", "last_retry_at", "resolved_at", "resolved_by", "kafka_offset",
		"kafka_partition",
		"kafka_topic", "correlation_id",
	}, columns[:19])
	indexes := map[string]bool{}
	for _, row := range rowsOf(t, db, "SELECT name FROM sqlite_master WHERE type = 'index'") {
		indexes[row[0].(string)] = true //nolint:forcetypeassert // a name is text
	}
	for _, name := range []string{"idx_dlq_status", "idx_dlq_created_at", "idx_dlq_source_id", "idx_dlq_event_type"} {
		require.True(t, indexes[name], name)
	}
}

// Queries by a field of the payload, and joins with other tables; they also work with a letter that is not JSON.
func TestDlqEvents_PayloadInQueries(t *testing.T) {
	t.Parallel()
	s, db := newFile(t, "")
	now := time.Now()
	payload := func(p string) func(*envelope.DeadLetter) {
		return func(d *envelope.DeadLetter) { d.Message.Payload = []byte(p) }
	}
	deep := make([]byte, 0, 4000)
	for range 2000 {
		deep = append(deep, '[')
	}
	for range 2000 {
		deep = append(deep, ']')
	}
	_, err := s.Put(t.Context(), entry(1, now), entry(2, now, payload(`{"employee": `)),
		entry(3, now, payload("\xff\x00")),
		entry(4, now, payload("")), entry(5, now, payload(string(deep))), entry(6, now, payload("{\"a\":\"\xff\"}")),
		entry(7, now))
	require.NoError(t, err)
	require.Equal(t, [][]any{{int64(7)}}, rowsOf(t, db,
		"SELECT id FROM dlq_events WHERE json_extract(event_payload, '$.employee.cpf') = '00000000007'"))
	require.Equal(t, [][]any{{int64(2)}, {int64(3)}, {int64(4)}, {int64(5)}, {int64(6)}},
		rowsOf(t, db, "SELECT id FROM dlq_events WHERE event_payload IS NULL ORDER BY id"))
	require.Equal(t, [][]any{{[]byte("\xff\x00")}}, rowsOf(t, db, "SELECT payload FROM dlq_events WHERE id = 3"))

	_, err = db.ExecContext(t.Context(), "CREATE TABLE employee (id TEXT PRIMARY KEY, department TEXT)")
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "INSERT INTO employee VALUES ('E-7', 'sales')")
	require.NoError(t, err)
	require.Equal(t, [][]any{{"sales", "event-7"}}, rowsOf(t, db,
		"SELECT e.department, d.event_id FROM dlq_events d JOIN employee e ON e.id = d.source_id WHERE d.source_table = "+
			"'employee'"))
}

// The archive has the whole entry, byte for byte, and a purge that cannot archive removes nothing.
func TestPurge_Archive(t *testing.T) {
	t.Parallel()
	s, db := newFile(t, "")
	now := time.Now()
	_, err := s.Put(t.Context(), entry(1, now, func(d *envelope.DeadLetter) { d.Message.Payload = []byte("\xff\x00") }),
		entry(2, now))
	require.NoError(t, err)
	_, err = s.Change(t.Context(), driver.Change{Action: driver.ActionResolve, IDs: []int64{1, 2}, Actor: "ana", At: now})
	require.NoError(t, err)
	want := rowsOf(t, db, "SELECT * FROM dlq_events ORDER BY id")
	purge := dlq.Purge{ClosedBefore: now.Add(time.Minute), Actor: "cron", At: now}

	_, err = db.ExecContext(t.Context(), "ALTER TABLE dlq_events_archive RENAME TO gone")
	require.NoError(t, err)
	_, err = s.Purge(t.Context(), purge)
	require.ErrorContains(t, err, "archive")
	require.Equal(t, want, rowsOf(t, db, "SELECT * FROM dlq_events ORDER BY id"))
	_, err = db.ExecContext(t.Context(), "ALTER TABLE gone RENAME TO dlq_events_archive")
	require.NoError(t, err)

	n, err := s.Purge(t.Context(), purge)
	require.NoError(t, err)
	require.Equal(t, 2, n)
	require.Empty(t, rowsOf(t, db, "SELECT id FROM dlq_events"))
	archived := rowsOf(t, db, "SELECT * FROM dlq_events_archive ORDER BY id")
	require.Len(t, archived, 2)
	for i, row := range archived {
		require.Equal(t, want[i], row[:len(row)-1])
		require.NotEmpty(t, row[len(row)-1], "when it was archived")
	}

	purge.SkipArchive = true
	_, err = s.Put(t.Context(), entry(3, now))
	require.NoError(t, err)
	_, err = s.Change(t.Context(), driver.Change{Action: driver.ActionResolve, IDs: []int64{3}, Actor: "ana", At: now})
	require.NoError(t, err)
	n, err = s.Purge(t.Context(), purge)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Len(t, rowsOf(t, db, "SELECT id FROM dlq_events_archive"), 2)
}

// The audit log cannot be changed, not even by the owner of the file.
func TestAudit_AppendOnly(t *testing.T) {
	t.Parallel()
	s, db := newFile(t, "")
	_, err := s.Put(t.Context(), entry(1, time.Now()))
	require.NoError(t, err)
	_, err = s.Change(t.Context(), driver.Change{
		Action: driver.ActionDiscard, IDs: []int64{1}, Actor: "eve",
		At: time.Now(),
	})
	require.NoError(t, err)
	for _, query := range []string{"UPDATE dlq_audit SET actor = 'ana'", "DELETE FROM dlq_audit"} {
		_, err := db.ExecContext(t.Context(), query)
		require.ErrorContains(t, err, "append-only")
	}
}

// A list reads a range of an index, however deep the page: no query of the suite scans the table or sorts it.
func TestList_UsesIndexes(t *testing.T) {
	t.Parallel()
	_, db := newFile(t, "")
	for name, where := range map[string]string{
		"all": "1 = 1", "status": "status = 'PENDING'", "topic": "topic = 'orders' AND status = 'PENDING'",
		"event type": "event_type = 'x' AND status = 'PENDING'", "source id": "source_id = 'x'",
		"correlation id": "correlation_id = 'x'",
		"fingerprint":    "fingerprint = 'x' AND status = 'PENDING'", "run": "run_id = 'x'",
	} {
		query := "EXPLAIN QUERY PLAN SELECT id, error_message FROM dlq_entries WHERE " + where +
			" AND (created_at, id) < ('2026-01-01', 7) ORDER BY created_at DESC, id DESC LIMIT 51"
		for _, row := range rowsOf(t, db, query) {
			step := fmt.Sprint(row[3])
			require.Contains(t, step, "USING INDEX idx_dlq_", "%s: %s", name, step)
			require.NotContains(t, step, "TEMP B-TREE", "%s: %s", name, step)
		}
	}
	for _, query := range []string{
		"SELECT id FROM dlq_entries WHERE event_id = 'x'",
		"SELECT id FROM dlq_entries WHERE dedup_key = x'00'",
	} {
		require.Contains(t, fmt.Sprint(rowsOf(t, db, "EXPLAIN QUERY PLAN "+query)), "SEARCH")
	}
	// The older query, through the view, uses the index of the table and never touches the messages.
	for _, row := range rowsOf(t, db, "EXPLAIN QUERY PLAN "+queryPending) {
		require.Contains(t, row[3], "idx_dlq_status")
	}
}

// A closed entry without the time of its closing, from another program or with a year that no column takes, was closed
// when it last changed: it counts in the statistics and can be purged. One whose time was removed by hand has none.
func TestImport_ClosedWithoutATime(t *testing.T) {
	t.Parallel()
	s, db := newFile(t, "")
	began := time.Now().Add(-48 * time.Hour)
	var letters []driver.Exported
	for n, resolved := range []time.Time{{}, time.Date(999, 1, 1, 0, 0, 0, 0, time.UTC), {}} {
		e := entry(n, began)
		e.Status, e.ResolvedAt, e.ChangedAt = dlq.Resolved, resolved, e.DiedAt.Add(time.Hour)
		letters = append(letters, driver.Exported{Entry: *e, Bodies: []dlq.Body{*e.Body}})
	}
	_, err := s.Import(t.Context(), dlq.By{Actor: "ana"}, time.Now(), letters...)
	require.NoError(t, err)
	mean := func() time.Duration {
		stats, err := s.Stats(t.Context(), dlq.StatsQuery{Now: time.Now()})
		require.NoError(t, err)
		require.Equal(t, int64(3), stats.Counts.Resolved)
		return stats.MeanResolution.Duration()
	}
	require.Equal(t, time.Hour, mean())
	_, err = db.ExecContext(t.Context(), "UPDATE dlq_entries SET resolved_at = NULL WHERE id = 1")
	require.NoError(t, err)
	require.NoError(t, s.Recount(t.Context()))
	require.Equal(t, 40*time.Minute, mean())
	n, err := s.Purge(t.Context(), driver.Purge{Actor: "ana", At: time.Now(), ClosedBefore: time.Now()})
	require.NoError(t, err)
	require.Equal(t, 2, n)
}
