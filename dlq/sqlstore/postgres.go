package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/huandu/go-sqlbuilder"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// postgres is the dialect of PostgreSQL 12 and later, through pgx.
type postgres struct {
	trigram bool // make an index for texts in errors
	monthly bool // partition the tables by month

	schema    string // of the tables; empty for the first of the search_path
	archiveIn string // the schema of the archive; empty for archive, or the schema's name and archiveSuffix
}

var _ dialect = postgres{}

func (postgres) flavor() sqlbuilder.Flavor { return sqlbuilder.PostgreSQL }

func (postgres) name() sqldb.Dialect { return sqldb.PostgreSQL }

func (d postgres) ready(ctx context.Context, db *sql.DB) error {
	if d.monthly {
		if err := d.partition(ctx, db); err != nil {
			return err
		}
	}
	yes, err := isPartitioned(ctx, db)
	if err != nil {
		return err
	}
	if yes {
		if err := d.makeMonths(ctx, db, time.Now()); err != nil {
			return err
		}
	}
	if !d.trigram {
		return nil
	}
	return makeTrigram(ctx, db)
}

func (postgres) forUpdate() string { return " FOR UPDATE" }

func (postgres) idIn(column string, ids []int64) iter.Seq2[string, []any] {
	return func(yield func(string, []any) bool) {
		if len(ids) > 0 {
			yield(column+" = ANY(?)", []any{ids})
		}
	}
}

// insertEntries inserts in the order of the keys, so that two processes with the same dead letters do not wait for each
// other.
func (postgres) insertEntries(ctx context.Context, s *Store, tx *sql.Tx, rows [][]any) (map[driver.Key]int64, error) {
	ids := make(map[driver.Key]int64, len(rows))
	if len(rows) == 0 {
		return ids, nil
	}
	names, values, args := unnest(entryColumns, rows)
	return ids, scanIDs(s.query(ctx, tx, "WITH v AS MATERIALIZED (SELECT * FROM "+values+"), k AS ("+
		"INSERT INTO dlq_keys (dedup_key, event_id, source_id, correlation_id)"+
		" SELECT dedup_key, event_id, source_id, correlation_id FROM v ORDER BY dedup_key"+
		" ON CONFLICT (dedup_key) DO NOTHING RETURNING entry_id, dedup_key)"+
		" INSERT INTO dlq_entries (id, "+names+") SELECT k.entry_id, v.* FROM v JOIN k USING (dedup_key) ORDER BY k.entry_id"+
		" RETURNING id, dedup_key", args...))(ids)
}

func (postgres) insertRows(ctx context.Context, s *Store, tx *sql.Tx, in rowsOf) error {
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

func (postgres) maxStatement() int { return 4 << 20 }

func (postgres) splitBody([]any) [][]any { return nil }

func (postgres) keys() (table, id string) { return "dlq_keys", "entry_id" }

func (postgres) archivedProjection() string { return "event_payload" }

func (postgres) splits() bool { return false }

func (postgres) hasParts([]byte) bool { return false }

func (postgres) after(column, op string, at, id func() string) string {
	return rowAfter(column, op, at, id)
}

func (postgres) upsert(u *upsertion, rows int) string {
	return onConflict(u, rows, "LEAST", "GREATEST")
}

func (postgres) time(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC()
}

func (postgres) contains(column, parameter string) string {
	return column + " ~ " + parameter
}

func (postgres) containsArg(text string) any { return regularExpression(text) }

func (postgres) containsBytes(column, parameter string) string {
	return "position(" + parameter + " IN " + column + ") > 0"
}

// projection is the payload as jsonb, unless jsonb cannot hold it: one such row would fail the whole statement.
func (postgres) projection(payload []byte) any {
	if !jsonbReadable(payload) {
		return nil
	}
	return string(payload)
}

func (d postgres) archive() string { return d.inArchive("dlq_events_archive") }

func (d postgres) archivedBodies() string { return d.inArchive("dlq_bodies_archive") }

// durable sets synchronous_commit for each transaction: a database or a role may have it off, and a crash of the server
// would then lose dead letters whose messages were acked.
func (postgres) durable(ctx context.Context, tx *sql.Tx) error {
	if _, err := tx.ExecContext(ctx, "SET LOCAL synchronous_commit = on"); err != nil {
		return fmt.Errorf("synchronous_commit: %w", err)
	}
	return nil
}

func (d postgres) inTx(ctx context.Context, db *sql.DB, fn func(*sql.Tx) error) error {
	return sqldb.PostgreSQL.Retry(ctx, db, &sql.TxOptions{Isolation: sql.LevelReadCommitted}, removed,
		func(tx *sql.Tx) error {
			if err := d.durable(ctx, tx); err != nil {
				return err
			}
			return fn(tx)
		})
}
