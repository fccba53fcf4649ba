package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// dialect is what differs between databases. Everything else in this package is written once.
type dialect interface {
	// name is the database's name, from which sqldb derives what every package knows about it.
	name() sqldb.Dialect
	// idIn yields conditions that together select the rows with these ids, in order, each with its parameters.
	idIn(column string, ids []int64) iter.Seq2[string, []any]
	// keys is the table for finding an entry by dedup_key, event_id, source_id and correlation_id, and its id column.
	keys() (table, id string)
	// insertEntries inserts rows of entryColumns except those whose key exists, and returns the ids of the new ones.
	insertEntries(ctx context.Context, s *Store, tx *sql.Tx, rows [][]any) (map[driver.Key]int64, error)
	// insertRows inserts any number of rows.
	insertRows(ctx context.Context, s *Store, tx *sql.Tx, in tableRows) error
	// time is a time as a parameter: UTC with microseconds. A zero time is NULL.
	time(t time.Time) any
	// contains is a condition that the column contains a text, ignoring case and accents.
	contains(column, text string, parameter func(any) string) string
	// containsBytes is a condition that a binary column contains the parameter.
	containsBytes(column, parameter string) string
	// hasField is a condition that the payload of a row b of dlq_bodies has a field with a value. A payload without a
	// projection has no fields.
	hasField(f wire.PayloadField, parameter func(any) string) string
	// projection is the value of payload_json, from which the view derives event_payload: NULL for a payload that the
	// database's JSON functions cannot read.
	projection(payload []byte) any
	// lockTables are statements after which no other transaction changes these tables until the transaction ends.
	lockTables(tables []string) []string
	// partSize is the maximum size of a payload in one row, in bytes; the rest is in dlq_parts. 0 means no limit.
	partSize() int
	// archive is the table of purged entries, archivedBodies that of the earlier revisions of archived entries.
	archive() string
	archivedBodies() string
	// archivedProjection derives payload_json from the archive's event_payload.
	archivedProjection() string
	// ready does the part of a migration that depends on the server or on the URL. Any number of processes may call it at
	// once.
	ready(ctx context.Context, db *sql.DB) error
}

// valueParameters has what the dialects without array parameters share.
type valueParameters struct{}

func (valueParameters) insertRows(ctx context.Context, s *Store, tx *sql.Tx, in tableRows) error {
	for chunk := range slices.Chunk(in.rows, maxRows) {
		_, err := s.exec(ctx, tx, insertInto(in.table, in.columns, len(chunk)), slices.Concat(chunk...)...)
		if err != nil {
			return err
		}
	}
	return nil
}

func (valueParameters) idIn(column string, ids []int64) iter.Seq2[string, []any] {
	return func(yield func(string, []any) bool) {
		for chunk := range slices.Chunk(ids, maxRows) {
			args := sqldb.Map(chunk, func(id *int64) any { return *id })
			if !yield(column+" IN "+questionMarks(len(chunk), 1), args) {
				return
			}
		}
	}
}

// timeText sorts as text in the order of time, and SQLite's date functions read it. MySQL's DATETIME has no zone, so
// the session's zone does not matter.
const timeText = "2006-01-02 15:04:05.000000"

func (valueParameters) time(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(timeText)
}

func (valueParameters) keys() (table, id string) { return "dlq_entries", "id" }

func (valueParameters) archive() string { return "dlq_events_archive" }

func (valueParameters) archivedBodies() string { return "dlq_bodies_archive" }

func (valueParameters) archivedProjection() string {
	return "CASE WHEN event_payload IS NULL THEN 0 ELSE 1 END"
}

// durably runs fn in a transaction that commits durably, regardless of the database's defaults.
func durably(ctx context.Context, d sqldb.Dialect, db *sql.DB, fn func(*sql.Tx) error) error {
	return d.Retry(ctx, db, d.ReadCommitted(), removed, func(tx *sql.Tx) error {
		if err := awaitDisk(ctx, d, tx); err != nil {
			return err
		}
		return fn(tx)
	})
}

// awaitDisk makes the commit of a transaction wait for the disk.
func awaitDisk(ctx context.Context, d sqldb.Dialect, tx *sql.Tx) error {
	if d != PostgreSQL {
		return nil
	}
	_, err := tx.ExecContext(ctx, "SELECT "+sqldb.AwaitDisk) //nolint:gosec // a constant
	return err
}

// upsertion is a multi-row INSERT that, for an existing key, replaces the columns of set, adds to those of add, and
// keeps the earlier of earliest and the later of latest.
type upsertion struct {
	table                                    string
	columns, key, set, add, earliest, latest []string
}

// sql is the statement for this many rows.
func (u *upsertion) sql(d sqldb.Dialect, rows int) string {
	conflict, incoming, least, greatest := " ON CONFLICT ("+strings.Join(u.key, ", ")+") DO UPDATE SET ", "excluded.%s",
		"LEAST", "GREATEST"
	switch d {
	case MySQL:
		conflict, incoming = " ON DUPLICATE KEY UPDATE ", "VALUES(%s)"
	case SQLite:
		least, greatest = "min", "max"
	case PostgreSQL:
	}
	sets := make([]string, 0, len(u.columns))
	for _, c := range u.columns {
		there, comes := u.table+"."+c, fmt.Sprintf(incoming, c)
		switch {
		case slices.Contains(u.set, c):
			sets = append(sets, c+" = "+comes)
		case slices.Contains(u.add, c):
			sets = append(sets, c+" = "+there+" + "+comes)
		case slices.Contains(u.earliest, c):
			sets = append(sets, c+" = "+least+"("+there+", "+comes+")")
		case slices.Contains(u.latest, c):
			sets = append(sets, c+" = "+greatest+"("+there+", "+comes+")")
		}
	}
	return insertInto(u.table, u.columns, rows) + conflict + strings.Join(sets, ", ")
}

// likePattern is a LIKE pattern, with ! as its escape character, for a column that holds the text.
func likePattern(text string) string { return "%" + likeEscaper.Replace(text) + "%" }

// A backslash would need different spelling in MySQL, whose strings have escapes.
var likeEscaper = strings.NewReplacer("!", "!!", "%", "!%", "_", "!_")

// mysql is the dialect of MySQL 8.0 and MariaDB 10.6 and later, through go-sql-driver/mysql.
type mysql struct{ valueParameters }

var _ dialect = mysql{}

func (mysql) name() sqldb.Dialect { return sqldb.MySQL }

// ready creates the triggers that keep the audit log append-only. By default, a server with a binary log only lets
// administrators create triggers; the store works without them.
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

// insertEntries marks its rows with a token, because MySQL's INSERT does not return which rows are new.
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

func (mysql) contains(column, text string, parameter func(any) string) string {
	return column + " COLLATE utf8mb4_general_ci LIKE " + parameter(likePattern(withoutMarks(text))) + " ESCAPE '!'"
}

func (mysql) containsBytes(column, parameter string) string {
	return "LOCATE(" + parameter + ", " + column + ") > 0"
}

// mysqlPart keeps a statement below the smallest max_allowed_packet in use (4 MiB), even with every byte escaped.
const mysqlPart = 1 << 20

func (mysql) partSize() int { return mysqlPart }

// MySQL reads JSON that is nested up to 100 deep and numbers that fit a double, MariaDB 32 deep, and neither reads lone
// surrogates.
var mysqlJSON = jsonLimits{bytes: mysqlPart, depth: 30, number: doubleNumber, text: true}

// projection is 1 for JSON: the view then converts the payload to text.
func (mysql) projection(payload []byte) any {
	if mysqlJSON.accept(payload) {
		return 1
	}
	return 0
}

// lockTables locks the existing rows, because LOCK TABLES would commit. The count of a cause or hour that is new in the
// meantime may be missing until the next recount.
func (mysql) lockTables(tables []string) []string {
	return sqldb.Map(tables, func(table *string) string { return "SELECT count(*) FROM " + *table + " FOR UPDATE" })
}

// pragmas are run on each connection, before those of its pool.
func (t *target) pragmas() []string {
	return []string{
		"PRAGMA busy_timeout=" + strconv.FormatInt(t.busyTimeout.Milliseconds(), 10),
		"PRAGMA synchronous=" + t.synchronous,
		"PRAGMA cache_size=-16000",
		"PRAGMA wal_autocheckpoint=4000", // small commits write the same pages repeatedly: checkpoint them less often
	}
}

// sqlite is the dialect of SQLite 3.42 and later.
type sqlite struct{ valueParameters }

func (sqlite) name() sqldb.Dialect { return sqldb.SQLite }

func (sqlite) ready(context.Context, *sql.DB) error { return nil }

func (sqlite) insertEntries(ctx context.Context, s *Store, tx *sql.Tx, rows [][]any) (map[driver.Key]int64, error) {
	ids := make(map[driver.Key]int64, len(rows))
	for chunk := range slices.Chunk(rows, maxRows) {
		query := insertInto("dlq_entries", entryColumns, len(chunk)) +
			" ON CONFLICT (dedup_key) DO NOTHING RETURNING id, dedup_key"
		if err := scanIDs(s.query(ctx, tx, query, slices.Concat(chunk...)...))(ids); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func (sqlite) lockTables([]string) []string { return nil } // _txlock=immediate: a transaction has the write lock

func (sqlite) partSize() int { return 0 }

// contains compares with LIKE first, which excludes most rows in a fifth of the time of GLOB's classes.
func (sqlite) contains(column, text string, parameter func(any) string) string {
	return column + " LIKE " + parameter(outline(text)) + " ESCAPE '!' AND " + column + " GLOB " +
		parameter(globPattern(text))
}

func (sqlite) containsBytes(column, parameter string) string {
	return "instr(" + column + ", " + parameter + ") > 0"
}

// Older versions of SQLite's JSON functions stop at a nesting of 1,000.
var sqliteJSON = jsonLimits{bytes: math.MaxInt, depth: 500}

// projection is 1 for JSON: the view then converts the payload to text.
func (sqlite) projection(payload []byte) any {
	if sqliteJSON.accept(payload) {
		return 1
	}
	return 0
}
