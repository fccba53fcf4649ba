package sqlstore

import (
	"context"
	"database/sql"
	"iter"
	"strconv"
	"time"

	"github.com/huandu/go-sqlbuilder"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// pragmas are run on each connection, before those of its pool.
func (t *target) pragmas() []string {
	return []string{
		"PRAGMA busy_timeout=" + strconv.FormatInt(t.busyTimeout.Milliseconds(), 10),
		"PRAGMA synchronous=" + t.synchronous,
		"PRAGMA cache_size=-16000",
		"PRAGMA wal_autocheckpoint=4000", // small commits write the same pages repeatedly: checkpoint them less often
	}
}

// sqlite is the dialect of SQLite 3.35 and later.
type sqlite struct{}

func (sqlite) flavor() sqlbuilder.Flavor { return sqlbuilder.SQLite }

func (sqlite) name() sqldb.Dialect { return sqldb.SQLite }

func (sqlite) ready(context.Context, *sql.DB) error { return nil }

func (sqlite) forUpdate() string { return "" } // _txlock=immediate: a transaction has the write lock from its start

func (sqlite) idIn(column string, ids []int64) iter.Seq2[string, []any] { return idInList(column, ids) }

func (sqlite) insertEntries(ctx context.Context, s *Store, tx *sql.Tx, rows [][]any) (map[driver.Key]int64, error) {
	return insertReturning(ctx, s, tx, rows)
}

func (sqlite) insertRows(ctx context.Context, s *Store, tx *sql.Tx, in rowsOf) error {
	return insertValues(ctx, s, tx, in)
}

func (sqlite) lockTables([]string) []string { return nil } // see forUpdate

func (sqlite) durable(context.Context, *sql.Tx) error { return nil }

func (sqlite) maxStatement() int { return 4 << 20 }

func (sqlite) splitBody([]any) [][]any { return nil }

func (sqlite) keys() (table, id string) { return "dlq_entries", "id" }

func (sqlite) archivedProjection() string { return "CASE WHEN event_payload IS NULL THEN 0 ELSE 1 END" }

func (sqlite) splits() bool { return false }

func (sqlite) hasParts([]byte) bool { return false }

func (sqlite) after(column, op string, at, id func() string) string {
	return rowAfter(column, op, at, id)
}

func (sqlite) upsert(u *upsertion, rows int) string {
	return onConflict(u, rows, "min", "max")
}

// sqliteTime sorts as text in the order of time, and is read by SQLite's date functions.
const sqliteTime = "2006-01-02 15:04:05.000000"

func (sqlite) time(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(sqliteTime)
}

func (sqlite) contains(column, parameter string) string {
	return column + " GLOB " + parameter
}

func (sqlite) containsArg(text string) any { return globPattern(text) }

func (sqlite) containsBytes(column, parameter string) string {
	return "instr(" + column + ", " + parameter + ") > 0"
}

// projection is 1 for JSON: the view then converts the payload to text. Older versions of SQLite's JSON functions stop
// at a nesting of 1,000, and one row that they cannot read fails a whole query.
func (sqlite) projection(payload []byte) any {
	if validJSON(payload, 500) {
		return 1
	}
	return 0
}

func (sqlite) archive() string { return "dlq_events_archive" }

func (sqlite) archivedBodies() string { return "dlq_bodies_archive" }

func (sqlite) inTx(ctx context.Context, db *sql.DB, fn func(*sql.Tx) error) error {
	return sqldb.InTx(ctx, db, nil, fn)
}
