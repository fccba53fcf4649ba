package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/huandu/go-sqlbuilder"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// mysql is the dialect of MySQL 8.0 and MariaDB 10.6 and later, through go-sql-driver/mysql.
type mysql struct{}

var _ dialect = mysql{}

func (mysql) flavor() sqlbuilder.Flavor { return sqlbuilder.MySQL }

func (mysql) name() sqldb.Dialect { return sqldb.MySQL }

// ready creates the triggers that keep the audit log append-only. A server with a binary log only lets administrators
// create triggers, unless configured otherwise: the store works without them.
func (mysql) ready(ctx context.Context, db *sql.DB) error {
	for _, event := range []string{"UPDATE", "DELETE"} {
		name := "dlq_audit_no_" + strings.ToLower(event)
		var there int
		err := db.QueryRowContext(ctx, "SELECT count(*) FROM information_schema.triggers"+
			" WHERE trigger_schema = DATABASE() AND trigger_name = ?", name).Scan(&there)
		if err != nil {
			return fmt.Errorf("look for triggers: %w", err)
		}
		if there > 0 {
			continue
		}
		_, err = db.ExecContext(ctx, "CREATE TRIGGER "+name+" BEFORE "+event+" ON dlq_audit FOR EACH ROW"+
			" SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'dlq_audit is append-only'")
		// 1359: another process was faster. 1142, 1227, 1419: not allowed.
		if err != nil && !sqldb.IsCode(err, "1359", "1142", "1227", "1419") {
			return fmt.Errorf("trigger: %w", err)
		}
	}
	return nil
}

func (mysql) forUpdate() string { return " FOR UPDATE" }

func (mysql) idIn(column string, ids []int64) iter.Seq2[string, []any] { return idInList(column, ids) }

// insertEntries distinguishes its own rows from existing ones by a token, since MySQL's INSERT returns no rows.
func (mysql) insertEntries(ctx context.Context, s *Store, tx *sql.Tx, rows [][]any) (map[driver.Key]int64, error) {
	ids := make(map[driver.Key]int64, len(rows))
	columns := append([]string{"put_token"}, entryColumns...)
	token := rand.Int64() //nolint:gosec // not a secret
	for chunk := range slices.Chunk(rows, maxRows) {
		args := make([]any, 0, len(chunk)*len(columns))
		keys := make([]any, 0, len(chunk)+1)
		for _, row := range chunk {
			args = append(append(args, token), row...)
			keys = append(keys, row[0])
		}
		// Not INSERT IGNORE: it ignores more than existing keys.
		query := insertInto("dlq_entries", columns, len(chunk)) + " ON DUPLICATE KEY UPDATE id = id"
		if _, err := s.exec(ctx, tx, query, args...); err != nil {
			return nil, err
		}
		err := scanIDs(s.query(ctx, tx, "SELECT id, dedup_key FROM dlq_entries WHERE dedup_key IN "+
			questionMarks(len(chunk), 1)+" AND put_token = ?", append(keys, token)...))(ids)
		if err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func (mysql) insertRows(ctx context.Context, s *Store, tx *sql.Tx, in rowsOf) error {
	return insertValues(ctx, s, tx, in)
}

func (mysql) upsert(u *upsertion, rows int) string {
	sets := make([]string, 0, len(u.add)+len(u.earliest)+len(u.latest))
	for _, c := range u.add {
		sets = append(sets, c+" = "+c+" + VALUES("+c+")")
	}
	for _, c := range u.earliest {
		sets = append(sets, c+" = LEAST("+c+", VALUES("+c+"))")
	}
	for _, c := range u.latest {
		sets = append(sets, c+" = GREATEST("+c+", VALUES("+c+"))")
	}
	return insertInto(u.table, u.columns, rows) + " ON DUPLICATE KEY UPDATE " + strings.Join(sets, ", ")
}

// after avoids comparing rows, for which MySQL does not use an index.
func (mysql) after(column, op string, at, id func() string) string {
	return "(" + column + " " + op + "= " + at() + " AND (" + column + " " + op + " " + at() + " OR id " + op + " " +
		id() + "))"
}

// time is text: a DATETIME has no zone, so none can interfere.
func (mysql) time(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(sqliteTime)
}

func (mysql) contains(column, parameter string) string {
	return column + " COLLATE utf8mb4_general_ci LIKE " + parameter + " ESCAPE '!'"
}

func (mysql) containsArg(text string) any { return likePattern(withoutMarks(text)) }

func (mysql) containsBytes(column, parameter string) string {
	return "LOCATE(" + parameter + ", " + column + ") > 0"
}

// mysqlPart is how much of a payload one row has, in bytes: its statement stays below the smallest max_allowed_packet
// in use (4 MiB), even with every byte escaped.
const mysqlPart = 1 << 20

// lockTables locks the existing rows: LOCK TABLES would commit. Counts of a new cause or hour in the meantime may be
// missing until the next recount.
func (mysql) lockTables(tables []string) []string {
	queries := make([]string, len(tables))
	for i, table := range tables {
		queries[i] = "SELECT count(*) FROM " + table + " FOR UPDATE"
	}
	return queries
}

func (mysql) durable(context.Context, *sql.Tx) error { return nil }

func (mysql) maxStatement() int { return mysqlPart }

func (mysql) splitBody(body []any) [][]any {
	column := slices.Index(bodyColumns, "payload")
	payload, _ := body[column].([]byte)
	if len(payload) <= mysqlPart {
		return nil
	}
	body[column] = payload[:mysqlPart]
	var parts [][]any
	for rest := range slices.Chunk(payload[mysqlPart:], mysqlPart) {
		parts = append(parts, []any{body[0], body[1], len(parts) + 1, rest})
	}
	return parts
}

func (mysql) keys() (table, id string) { return "dlq_entries", "id" }

func (mysql) archivedProjection() string { return "CASE WHEN event_payload IS NULL THEN 0 ELSE 1 END" }

func (mysql) splits() bool { return true }

func (mysql) hasParts(payload []byte) bool { return len(payload) == mysqlPart }

func (mysql) archive() string { return "dlq_events_archive" }

func (mysql) archivedBodies() string { return "dlq_bodies_archive" }

// inTx uses READ COMMITTED: at the default level, gap locks make processes wait for each other. Durability is a setting
// of the server (innodb_flush_log_at_trx_commit = 1, the default).
func (mysql) inTx(ctx context.Context, db *sql.DB, fn func(*sql.Tx) error) error {
	return sqldb.MySQL.Retry(ctx, db, &sql.TxOptions{Isolation: sql.LevelReadCommitted}, removed, fn)
}
