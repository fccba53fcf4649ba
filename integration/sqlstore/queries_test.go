package sqlstore_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqtest"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// These are the original queries of the system that migrates.
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
SELECT DATE_TRUNC('hour', created_at) AS hour, COUNT(*) AS errors
FROM dlq_events
WHERE created_at >= NOW() - INTERVAL '7 days'
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
SELECT AVG(EXTRACT(EPOCH FROM (resolved_at - created_at)) / 3600) AS hours
FROM dlq_events
WHERE status = 'RESOLVED' AND resolved_at IS NOT NULL`
)

// rowsOf runs a query and returns its rows.
func rowsOf(t testing.TB, db *sql.DB, query string, args ...any) [][]any {
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

func failed(text, topic string) func(*envelope.DeadLetter) {
	return func(d *envelope.DeadLetter) { d.Err.Message, d.Origin.Topic = text, topic }
}

// The queries have the same results on this store as on the original table.
func TestPostgres_TheFiveQueries(t *testing.T) {
	t.Parallel()
	url := servers["PostgreSQL"](t)
	s, db := openStore(t, url), openDB(t, url)
	defer s.Close()
	now := time.Now().UTC().Truncate(time.Hour)
	cpf, age := failed("CPF inválido", "create"), failed("idade < 16", "update")
	_, err := s.Put(t.Context(),
		letter(1, now.Add(-time.Hour), cpf), letter(2, now.Add(-2*time.Hour), cpf),
		letter(3, now.Add(-2*time.Hour+time.Minute), cpf),
		letter(4, now.Add(-3*time.Hour), age), letter(5, now.Add(-month), age), letter(6, now.Add(-month), cpf))
	require.NoError(t, err)
	byEvent := map[string]int64{}
	listing, err := s.List(t.Context(), dlq.Filter{}, dlq.Page{})
	require.NoError(t, err)
	for _, e := range listing.Entries {
		byEvent[e.EventID] = e.ID
	}
	for event, hours := range map[string]time.Duration{"event-5": 2, "event-6": 4} {
		results, err := s.Change(t.Context(), driver.Change{
			Action: driver.ActionResolve, IDs: []int64{byEvent[event]}, Actor: "ana", At: now.Add(-month + hours*time.Hour),
		})
		require.NoError(t, err)
		require.NoError(t, results[0].Err)
	}

	pending := rowsOf(t, db, queryPending)
	require.Len(t, pending, 4)
	require.Equal(t, []any{byEvent["event-1"], "event-1", "E-1", "CPF inválido"}, pending[0][:4])
	require.Equal(t, byEvent["event-4"], pending[3][0])
	require.Equal(t, [][]any{{"CPF inválido", int64(3)}, {"idade < 16", int64(1)}}, rowsOf(t, db, queryTopErrors))
	hours := rowsOf(t, db, queryPerHour)
	require.Len(t, hours, 3)
	for i, want := range []int64{1, 2, 1} {
		require.WithinDuration(t, now.Add(time.Duration(i-3)*time.Hour), hours[i][0].(time.Time), 0) //nolint:forcetypeassert // a timestamp
		require.Equal(t, want, hours[i][1])
	}
	require.Equal(t, [][]any{{"create", int64(4), int64(3), int64(1)}, {"update", int64(2), int64(1), int64(1)}},
		rowsOf(t, db, queryByType))
	var mean float64
	require.NoError(t, db.QueryRowContext(t.Context(), queryResolution).Scan(&mean))
	require.InDelta(t, 3.0, mean, 0.001)
}

// The store has the original columns, in their order and with their types, and the indexes.
func TestPostgres_ColumnsAndIndexes(t *testing.T) {
	t.Parallel()
	url := servers["PostgreSQL"](t)
	s, db := openStore(t, url), openDB(t, url)
	defer s.Close()
	columns := rowsOf(t, db, `SELECT column_name, data_type FROM information_schema.columns
		WHERE table_schema = 'public' AND table_name = 'dlq_events' ORDER BY ordinal_position LIMIT 19`)
	require.Equal(t, [][]any{
		{"id", "bigint"},
		{"event_id", "text"},
		{"event_type", "text"},
		{"source_table", "text"},
		{"source_id", "text"},
		{"event_payload", "jsonb"},
		{"error_message", "text"},
		{"stack_trace", "text"},
		{"retry_count", "integer"},
		{"max_retries", "integer"},
		{"status", "character varying"},
		{"created_at", "timestamp with time zone"},
		{"last_retry_at", "timestamp with time zone"},
		{"resolved_at", "timestamp with time zone"},
		{"resolved_by", "text"},
		{"kafka_offset", "bigint"},
		{"kafka_partition", "integer"},
		{"kafka_topic", "text"},
		{"correlation_id", "uuid"},
	}, columns)
	for _, name := range []string{"idx_dlq_status", "idx_dlq_created_at", "idx_dlq_source_id", "idx_dlq_event_type"} {
		require.Len(t, rowsOf(t, db, "SELECT 1 FROM pg_indexes WHERE indexname = $1", name), 1, name)
	}
}

// In SQL, every payload of the corpus is jsonb if jsonb can represent it, and otherwise NULL; a correlation id that is
// not a UUID is NULL, and its text is in another column.
func TestPostgres_Projection(t *testing.T) {
	t.Parallel()
	url := servers["PostgreSQL"](t)
	s, db := openStore(t, url), openDB(t, url)
	defer s.Close()
	now := time.Now()
	n := 0
	for name, payload := range dlqtest.Payloads() {
		n++
		_, err := s.Put(t.Context(), letter(n, now, func(d *envelope.DeadLetter) {
			d.Message.Payload = payload
			d.Message.Metadata[envelope.KeyMessageID] = name
			d.Message.Metadata[envelope.KeyCorrelationID] = name
		}))
		require.NoError(t, err, name)
	}
	var projected []string
	for _, row := range rowsOf(t, db, "SELECT event_id FROM dlq_events WHERE event_payload IS NOT NULL ORDER BY "+
		"event_id") {
		projected = append(projected, row[0].(string)) //nolint:forcetypeassert // text
	}
	require.Equal(t, []string{"400 digits", "big number", "duplicate keys", "json", "zero with an exponent"}, projected)
	require.Empty(t, rowsOf(t, db, "SELECT 1 FROM dlq_events WHERE correlation_id IS NOT NULL"))
	require.Len(t, rowsOf(t, db, "SELECT 1 FROM dlq_events WHERE correlation = 'raw NUL'"), 1)

	_, err := s.Put(t.Context(), letter(1000, now))
	require.NoError(t, err)
	require.Len(t, rowsOf(t, db, "SELECT 1 FROM dlq_events WHERE event_payload->'employee'->>'cpf' = '00000001000'"), 1)
	require.Len(t, rowsOf(t, db, "SELECT 1 FROM dlq_events WHERE correlation_id = $1", correlation(1000)), 1)
}

// On MySQL and MariaDB the projection is text that their JSON functions accept.
func TestMySQL_Projection(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"MariaDB", "MySQL"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := servers[name](t)
			s, db := openStore(t, url), openDB(t, url)
			defer s.Close()
			n := 0
			for name, payload := range dlqtest.Payloads() {
				n++
				_, err := s.Put(t.Context(), letter(n, time.Now(), func(d *envelope.DeadLetter) { d.Message.Payload = payload }))
				require.NoError(t, err, name)
			}
			_, err := s.Put(t.Context(), letter(1000, time.Now()))
			require.NoError(t, err)
			require.Empty(t, rowsOf(t, db, "SELECT id FROM dlq_events WHERE JSON_VALID(event_payload) = 0"))
			require.Len(t, rowsOf(t, db, "SELECT 1 FROM dlq_events WHERE JSON_VALUE(event_payload, '$.employee.cpf') = "+
				"'00000001000'"), 1)
		})
	}
}
