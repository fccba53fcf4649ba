package sqlstore

import (
	"context"
	"database/sql"
	"math"
	"slices"
	"strconv"

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
