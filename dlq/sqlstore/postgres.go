package sqlstore

import (
	"context"
	"database/sql"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// postgres is the dialect of PostgreSQL 12 and later, through pgx.
type postgres struct {
	monthly bool // partition the tables by month

	schema    string // of the tables; empty for the first of the search_path
	archiveIn string // the schema of the archive; empty for archive, or the schema's name and archiveSuffix
}

var _ dialect = postgres{}

func (postgres) name() sqldb.Dialect { return sqldb.PostgreSQL }

func (d postgres) ready(ctx context.Context, db *sql.DB) error {
	if d.monthly {
		if err := d.partition(ctx, db); err != nil {
			return err
		}
	}
	yes, err := isPartitioned(ctx, db)
	if err != nil || !yes {
		return err
	}
	return d.makeMonths(ctx, db, time.Now())
}

func (postgres) idIn(column string, ids []int64) iter.Seq2[string, []any] {
	return func(yield func(string, []any) bool) {
		if len(ids) > 0 {
			yield(column+" = ANY(?)", []any{ids})
		}
	}
}

func (d postgres) insertEntries(ctx context.Context, s *Store, tx *sql.Tx, rows [][]any) (map[driver.Key]int64, error) {
	ids := make(map[driver.Key]int64, len(rows))
	if len(rows) == 0 {
		return ids, nil
	}
	keys := make([][]any, len(rows))
	for i, row := range rows {
		for _, column := range keyColumns {
			keys[i] = append(keys[i], row[slices.Index(entryColumns, column)])
		}
	}
	query, args := insertUnnest("dlq_keys", keyColumns, keys)
	query += " ON CONFLICT (dedup_key) DO NOTHING RETURNING entry_id, dedup_key"
	if err := scanIDs(s.query(ctx, tx, query, args...))(ids); err != nil {
		return nil, err
	}
	fresh := tableRows{table: "dlq_entries", columns: append([]string{"id"}, entryColumns...)}
	for _, row := range rows {
		if id, isNew := ids[driver.Key(row[0].([]byte))]; isNew { //nolint:forcetypeassert // dedup_key, the first column
			fresh.rows = append(fresh.rows, append([]any{id}, row...))
		}
	}
	return ids, d.insertRows(ctx, s, tx, fresh)
}

// keyColumns are the columns of dlq_keys without the entry's id.
var keyColumns = []string{"dedup_key", "event_id", "source_id", "correlation_id"}

func (postgres) insertRows(ctx context.Context, s *Store, tx *sql.Tx, in tableRows) error {
	if len(in.rows) == 0 {
		return nil
	}
	query, args := insertUnnest(in.table, in.columns, in.rows)
	_, err := s.exec(ctx, tx, query, args...)
	return err
}

func (postgres) lockTables(tables []string) []string {
	return []string{"LOCK TABLE " + strings.Join(tables, ", ") + " IN SHARE ROW EXCLUSIVE MODE"}
}

func (postgres) partSize() int { return 0 }

func (postgres) keys() (table, id string) { return "dlq_keys", "entry_id" }

func (postgres) archivedProjection() string { return "event_payload" }

func (postgres) time(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC()
}

func (postgres) contains(column, text string, parameter func(any) string) string {
	return column + " ~ " + parameter(regularExpression(text))
}

func (postgres) containsBytes(column, parameter string) string {
	return "position(" + parameter + " IN " + column + ") > 0"
}

// jsonb is stricter than JSON: no \u0000, no lone surrogates, and no numbers beyond NUMERIC.
var postgresJSON = jsonLimits{bytes: 16 << 20, depth: 500, number: plainNumber, text: true}

// projection is the payload as jsonb.
func (postgres) projection(payload []byte) any {
	if !postgresJSON.accept(payload) {
		return nil
	}
	return string(payload)
}

func (d postgres) archive() string { return d.inArchive("dlq_events_archive") }

func (d postgres) archivedBodies() string { return d.inArchive("dlq_bodies_archive") }
