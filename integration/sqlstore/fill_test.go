package sqlstore_test

import (
	"database/sql"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
)

// month is the time span of the filled tables, up to now.
const month = 30 * 24 * time.Hour

// rowCount returns how many rows the tests of query plans and the benchmarks use: 200,000, or REDRIVE_ROWS.
func rowCount(t testing.TB) int {
	t.Helper()
	text := os.Getenv("REDRIVE_ROWS")
	if text == "" {
		return 200_000
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "REDRIVE_ROWS")
	return n
}

// causes are the errors of the filled tables; the first has a third of all rows, and some have different values in each
// row.
var causes = []func(n int) (class, text string){
	func(int) (string, string) { return "*esocial.ValidationError", "Falha na validação: CPF inválido" },
	func(n int) (string, string) {
		return "*esocial.ValidationError", fmt.Sprintf("Falha na validação: idade %d, mínimo 16", n%16)
	},
	func(int) (string, string) { return "*esocial.ValidationError", "Falha na validação: CPF inválido" },
	func(n int) (string, string) {
		return "*net.OpError", fmt.Sprintf("dial tcp 10.0.%d.%d:5432: connect: connection refused", n>>8&255, n&255)
	},
	func(int) (string, string) { return "*json.SyntaxError", "unexpected end of JSON input" },
	func(n int) (string, string) {
		return "*esocial.DateError", fmt.Sprintf("data de demissão 2026-01-%02d antes da admissão", n%28+1)
	},
	func(n int) (string, string) {
		return "*url.Error", fmt.Sprintf(`Post "https://bank.test/pay/%d": timeout`, n)
	},
}

// letter returns the n-th dead letter of the tests, which died at the given time.
func letter(n int, at time.Time, edits ...func(*envelope.DeadLetter)) *dlq.Entry {
	m := message.NewMessage(fmt.Sprintf("uuid-%d", n), fmt.Appendf(nil,
		`{"employee":{"cpf":"%011d","name":"Ana Maria da `+
			`Silva","admission":"2026-01-02","salary":"1234.56"},"seq":%d,"tenant":"acme"}`, n, n))
	m.Metadata[envelope.KeyMessageID] = fmt.Sprintf("event-%d", n)
	m.Metadata[envelope.KeyCorrelationID] = correlation(n)
	m.Metadata["source_id"] = fmt.Sprintf("E-%d", n)
	m.Metadata["source_table"] = "employee"
	class, text := causes[n%len(causes)](n)
	topic := []string{"employee-create", "employee-update", "employee-delete"}[n%3]
	partition, offset := int32(n%8), int64(n/8)
	d := &envelope.DeadLetter{
		Message: m, Reason: envelope.ReasonPermanent,
		Err:   envelope.Error{Message: text, Trace: "esocial.Validate()\n\tvalidate.go:42\nmain.handle()"},
		Class: class, Handler: "validate", Attempts: 1, At: at,
		Origin: envelope.Origin{
			Broker: "kafka", Topic: topic, Consumer: "esocial", Partition: &partition, Offset: &offset,
			Position: fmt.Sprintf("%d/%d", partition, offset),
		},
	}
	for _, edit := range edits {
		edit(d)
	}
	return dlq.NewEntry(d)
}

func correlation(n int) string { return fmt.Sprintf("6f1f3a52-0000-4000-8000-%012x", n) }

// filled returns the n-th of total rows, spread over the last month: the newest third is pending, older ones are
// resolved, and some discarded.
func filled(n, total int, end time.Time) *dlq.Entry {
	e := letter(n, end.Add(-month+month*time.Duration(n)/time.Duration(total)))
	switch {
	case n%10 == 7:
		e.Status = dlq.Discarded
	case n < total*2/3:
		e.Status = dlq.Resolved
	}
	if e.Status != dlq.Pending {
		e.Version, e.ResolvedAt, e.ResolvedBy = 2, e.CreatedAt.Add(3*time.Hour), "ana"
		e.ChangedAt, e.ChangedBy = e.ResolvedAt, "ana"
	}
	return e
}

// template is how many rows the store itself stores; SQL copies the others from them.
const template = 2000

// fill creates total rows, in the order of their time, and updates the planner's statistics. It returns a time after
// the newest.
func fill(t testing.TB, s *sqlstore.Store, db *sql.DB, total int) time.Time {
	t.Helper()
	end := time.Now().UTC().Truncate(time.Microsecond)
	letters := make([]*dlq.Entry, template)
	for n := range letters {
		letters[n] = filled(n, template, end)
	}
	_, err := s.Put(t.Context(), letters...)
	require.NoError(t, err)
	conn, err := db.Conn(t.Context()) // temporary tables belong to a session
	require.NoError(t, err)
	defer conn.Close()
	copies := total / template
	step := month / time.Duration(total)
	at := fmt.Sprintf("'%s'::timestamptz + r.row * interval '%d microseconds'", end.Add(-month).Format(time.RFC3339Nano),
		step.Microseconds())
	correlation := "'6f1f3a52-0000-4000-8000-' || lpad(to_hex(r.row), 12, '0')"
	statements := []string{
		"CREATE TEMP TABLE old_entries AS TABLE dlq_entries",
		"CREATE TEMP TABLE old_bodies AS TABLE dlq_bodies",
		"TRUNCATE dlq_entries, dlq_bodies, dlq_keys, dlq_hours",
		fmt.Sprintf(`CREATE TEMP TABLE r AS SELECT e.id AS old, substr(e.event_id, 7)::bigint * %d + g AS row
			FROM old_entries e, generate_series(0, %d) g ORDER BY row`, copies, copies-1),
		"INSERT INTO dlq_entries SELECT " + columnsOf(t, db, "dlq_entries", "e", map[string]string{
			"id": "r.row + 1", "dedup_key": "sha256(int8send(r.row))", "event_id": "'event-' || r.row",
			"source_id":      "'E-' || r.row",
			"correlation_id": correlation, "created_at": at, "first_failure_at": at, "died_at": at, "last_seen_at": at,
			"changed_at":  at,
			"resolved_at": "CASE WHEN e.resolved_at IS NOT NULL THEN " + at + " + interval '3 hours' END",
		}) + " FROM r JOIN old_entries e ON e.id = r.old ORDER BY r.row",
		"INSERT INTO dlq_keys (dedup_key, entry_id, event_id, source_id, correlation_id)" +
			" SELECT dedup_key, id, event_id, source_id, correlation_id FROM dlq_entries ORDER BY id",
		"INSERT INTO dlq_bodies SELECT " + columnsOf(t, db, "dlq_bodies", "b", map[string]string{"entry_id": "r.row + 1"}) +
			" FROM r JOIN old_bodies b ON b.entry_id = r.old ORDER BY r.row",
		"INSERT INTO dlq_hours (hour, fingerprint, entries) SELECT date_trunc('hour', created_at), fingerprint, count(*) " +
			"FROM dlq_entries GROUP BY 1, 2",
		`INSERT INTO dlq_hours (hour, fingerprint, closed) SELECT date_trunc('hour', resolved_at), fingerprint, count(*) FROM dlq_entries
			WHERE resolved_at IS NOT NULL GROUP BY 1, 2 ON CONFLICT (hour, fingerprint) DO UPDATE SET closed = excluded.closed`,
		fmt.Sprintf(`UPDATE dlq_groups SET pending = pending * %[1]d, resolved = resolved * %[1]d, discarded = discarded `+
			`* %[1]d`, copies),
		fmt.Sprintf(`UPDATE dlq_counts SET pending = pending * %[1]d, resolved = resolved * %[1]d, discarded = discarded * %[1]d,
			resolution_ms = resolution_ms * %[1]d`, copies),
		"SELECT setval('dlq_entries_id_seq', (SELECT max(id) FROM dlq_entries))",
		"VACUUM ANALYZE",
	}
	for _, statement := range statements {
		_, err := conn.ExecContext(t.Context(), statement)
		require.NoError(t, err, statement)
	}
	return end
}

// columnsOf returns the list of a table's columns, some of them replaced.
func columnsOf(t testing.TB, db *sql.DB, table, alias string, replace map[string]string) string {
	t.Helper()
	var columns []string
	for _, row := range rowsOf(t, db, "SELECT column_name FROM information_schema.columns WHERE table_name = $1 ORDER "+
		"BY ordinal_position", table) {
		name := row[0].(string) //nolint:forcetypeassert // text
		if by := replace[name]; by != "" {
			columns = append(columns, by)
		} else {
			columns = append(columns, alias+"."+name)
		}
	}
	return strings.Join(columns, ", ")
}
