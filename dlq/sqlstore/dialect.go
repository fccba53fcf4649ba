package sqlstore

import (
	"context"
	"database/sql"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/huandu/go-sqlbuilder"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// dialect is what differs between databases. Everything else in this package is written once.
type dialect interface {
	// flavor is for the statement builder.
	flavor() sqlbuilder.Flavor
	// name is the database's name, from which sqldb derives what every package knows about it.
	name() sqldb.Dialect
	// forUpdate ends a SELECT whose rows will be changed; empty where a transaction locks the whole database.
	forUpdate() string
	// idIn yields conditions that together select the rows with these ids, in order, and their parameters.
	idIn(column string, ids []int64) iter.Seq2[string, []any]
	// keys is the table for finding an entry by dedup_key, event_id, source_id and correlation_id, and its id column.
	keys() (table, id string)
	// insertEntries inserts rows of entryColumns except those whose key exists, and returns the ids of the new ones.
	insertEntries(ctx context.Context, s *Store, tx *sql.Tx, rows [][]any) (map[driver.Key]int64, error)
	// insertRows inserts any number of rows.
	insertRows(ctx context.Context, s *Store, tx *sql.Tx, in rowsOf) error
	// upsert is an INSERT of this many rows.
	upsert(u *upsertion, rows int) string
	// after is the condition that a row comes after a position in a listing; op is < or >. at and id write their
	// parameter.
	after(column, op string, at, id func() string) string
	// time is a time as a parameter: UTC with microseconds. A zero time is NULL.
	time(t time.Time) any
	// contains is a condition that the column contains a text, ignoring case and accents; containsArg makes the parameter.
	contains(column, parameter string) string
	containsArg(text string) any
	// containsBytes is a condition that a binary column contains the parameter.
	containsBytes(column, parameter string) string
	// hasField is a condition that the payload of a row b of dlq_bodies has a field with a value, and what it needs after
	// dlq_bodies b in FROM. A payload without a projection has no fields.
	hasField(f driver.PayloadField, parameter func(any) string) (tables, where string)
	// projection is the value of payload_json: what derives event_payload from this payload if the database's JSON
	// functions can read it, otherwise what makes it NULL.
	projection(payload []byte) any
	// lockTables are statements after which no other transaction changes these tables until the transaction ends.
	lockTables(tables []string) []string
	// maxStatement is the target size of a statement for many bodies, in bytes.
	maxStatement() int
	// splitBody cuts what is too long for one row off a row of bodyColumns, and returns it as rows of partColumns.
	splitBody(body []any) [][]any
	// splits reports whether there is a table dlq_parts.
	splits() bool
	// hasParts reports whether a payload, as it was read, may continue in dlq_parts.
	hasParts(payload []byte) bool
	// archive is the table of purged entries, archivedBodies that of the earlier revisions of archived entries.
	archive() string
	archivedBodies() string
	// archivedProjection derives payload_json from the archive's event_payload.
	archivedProjection() string
	// ready does what a migration cannot, because it depends on the server or on the URL. Any number of processes may call
	// it at once.
	ready(ctx context.Context, db *sql.DB) error
	// durable makes the commit of a transaction wait for the disk, where that is not a setting of the whole database.
	durable(ctx context.Context, tx *sql.Tx) error
	// inTx runs fn in a transaction that commits durably, regardless of the database's defaults.
	inTx(ctx context.Context, db *sql.DB, fn func(*sql.Tx) error) error
}

// upsertion is a multi-row INSERT that, for an existing key, adds to the columns of add, and keeps the earlier of
// earliest and the later of latest.
type upsertion struct {
	table                               string
	columns, key, add, earliest, latest []string
}

// onConflict is the upsert of SQLite and PostgreSQL. lesser and greater are the names of the functions that return the
// lesser and the greater of two values.
func onConflict(u *upsertion, rows int, lesser, greater string) string {
	sets := make([]string, 0, len(u.add)+len(u.earliest)+len(u.latest))
	for _, c := range u.add {
		sets = append(sets, c+" = "+u.table+"."+c+" + excluded."+c)
	}
	for _, c := range u.earliest {
		sets = append(sets, c+" = "+lesser+"("+u.table+"."+c+", excluded."+c+")")
	}
	for _, c := range u.latest {
		sets = append(sets, c+" = "+greater+"("+u.table+"."+c+", excluded."+c+")")
	}
	return insertInto(u.table, u.columns, rows) + " ON CONFLICT (" + strings.Join(u.key, ", ") + ") DO UPDATE SET " +
		strings.Join(sets, ", ")
}

// likePattern is a LIKE pattern, with ! as its escape character, for a column that holds the text.
func likePattern(text string) string { return "%" + likeEscaper.Replace(text) + "%" }

// A backslash would need different spelling in MySQL, whose strings have escapes.
var likeEscaper = strings.NewReplacer("!", "!!", "%", "!%", "_", "!_")

// rowAfter compares rows, which is an index range in SQLite and PostgreSQL.
func rowAfter(column, op string, at, id func() string) string {
	return "(" + column + ", id) " + op + " (" + at() + ", " + id() + ")"
}

// insertReturning is insertEntries for SQLite and other databases with its ON CONFLICT.
func insertReturning(ctx context.Context, s *Store, tx *sql.Tx, rows [][]any) (map[driver.Key]int64, error) {
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
