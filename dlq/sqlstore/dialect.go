package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"slices"
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
