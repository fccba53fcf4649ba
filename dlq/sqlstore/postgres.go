package sqlstore

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
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

// Nearly all letters are new and PENDING. On PostgreSQL one call of a function of the schema stores any number of them:
// keys, entries, bodies and statistics. The call is its own transaction, so that it takes one round trip instead of
// eight, and the server has planned the function's statements before.
//
// One statement with a WITH query for each table took the server twice as long for a single letter, because it joins
// these queries and sets up each of them again. For many letters the function relies on their order instead of a join,
// and streams the values of each column into the rows instead of collecting them in a table first.

// isNew reports whether the letter has the initial values in all of its columns, so that it is just a row to insert
// unless its key exists.
func (r *letterRow) isNew() bool {
	e := r.Entry
	return e.RedriveOf == 0 && e.Status == dlq.Pending && e.Version == 1 && e.Revision == 0 && e.Body.Revision == 0 &&
		e.RedriveCount == 0 && e.DeathRedrive == 0 && e.SeenCount == 1 && e.Size == int64(len(e.Body.Payload)) &&
		e.Run == "" && e.ResolvedBy == "" && e.LeaseUntil.IsZero() && e.LastRedriveAt.IsZero() && e.SucceededAt.IsZero() &&
		e.ResolvedAt.IsZero() && e.DiedAt.Equal(e.CreatedAt) && e.LastSeenAt.Equal(e.CreatedAt) &&
		e.ChangedAt.Equal(e.CreatedAt)
}

// newColumns are the columns that are parameters of the functions. The others have their defaults, are computed from
// these, or are NULL until something happens to the letter.
var newColumns = slices.Concat(
	sqldb.Map(slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return c.derived }),
		func(c *column) string { return c.name }),
	bodyColumns[2:],
)

func (r *letterRow) newValues() []any {
	values := make([]any, 0, len(newColumns))
	for i := range columns {
		if !columns[i].derived {
			values = append(values, r.entry[i])
		}
	}
	return append(values, r.body[2:]...)
}

type statisticParameter struct{ parameter, table, column string }

// statisticParameters are the other parameters of dlq_put_letters: for each letter, the numbers of its group, its count
// and its hour, and for each of those the columns of its table. The server finishes them, because only it knows which
// of the letters are new, and their ids.
var statisticParameters = []statisticParameter{
	{"in_group", "", "group"},
	{"in_count", "", "count"},
	{"in_hour", "", "hour"},
	{"group_fingerprint", "dlq_groups", "fingerprint"},
	{"group_cause", "dlq_groups", "cause"},
	{"group_sample", "dlq_groups", "sample"},
	{"group_class", "dlq_groups", "error_class"},
	{"group_handler", "dlq_groups", "handler"},
	{"group_first", "dlq_groups", "first_seen"},
	{"group_last", "dlq_groups", "last_seen"},
	{"group_at", "dlq_groups", "last_entry_id"},
	{"group_new", "dlq_groups", "pending"},
	{"count_type", "dlq_counts", "event_type"},
	{"count_topic", "dlq_counts", "topic"},
	{"count_new", "dlq_counts", "pending"},
	{"hour_at", "dlq_hours", "hour"},
	{"hour_fingerprint", "dlq_hours", "fingerprint"},
	{"hour_new", "dlq_hours", "entries"},
}

var (
	putLetters = putStatement("dlq_put_letters", "[]",
		sqldb.Map(statisticParameters, func(s *statisticParameter) string { return s.parameter })...)
	putLetter = putStatement("dlq_put_letter", "", "v_cause", "v_hour")
)

// putStatement calls a function with a parameter for each of newColumns, and for each of some more.
func putStatement(function, array string, more ...string) string {
	var args []string
	for i, name := range slices.Concat(newColumns, more) {
		kind := postgresType(name) + array
		if i < len(newColumns) {
			name = "v_" + name
		}
		args = append(args, name+" => $"+strconv.Itoa(i+1)+"::"+kind)
	}
	return "SELECT " + function + "(" + strings.Join(args, ", ") + ")"
}

// putNew stores those of the letters whose key does not exist, and returns their ids. Each letter has a different key,
// and isNew.
func (d postgres) putNew(ctx context.Context, s *Store, letters []letterRow) (map[driver.Key]int64, error) {
	if len(letters) == 1 {
		return d.putOne(ctx, s, &letters[0])
	}
	// In the order of their keys, so that two processes with the same dead letters do not deadlock.
	letters = slices.SortedFunc(slices.Values(letters),
		func(a, b letterRow) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	rows := sqldb.Map(letters, (*letterRow).newValues)
	args := make([]any, 0, len(newColumns)+len(statisticParameters))
	for i, name := range newColumns {
		args = append(args, columnArray(postgresType(name), rows, i))
	}
	var stored sql.NullString
	err := s.write.QueryRowContext(ctx, putLetters, append(args, d.newStatistics(letters)...)...).Scan(&stored)
	if err != nil {
		return nil, fmt.Errorf("new letters: %w", err)
	}
	ids := make(map[driver.Key]int64, len(letters))
	if !stored.Valid {
		return ids, nil
	}
	for i, text := range strings.Split(strings.Trim(stored.String, "{}"), ",") {
		if text == "NULL" || i >= len(letters) {
			continue
		}
		if ids[letters[i].Key], err = strconv.ParseInt(text, 10, 64); err != nil {
			return nil, fmt.Errorf("ids of new letters: %w", err)
		}
	}
	return ids, nil
}

// newStatistics are the values of statisticParameters if all letters are new. Groups, counts and hours are in the order
// in which every transaction locks them, and numbered from 1 as WITH ORDINALITY counts. So are the letters, whose ids
// are not known yet.
func (d postgres) newStatistics(letters []letterRow) []any {
	var all deltas
	for i := range letters {
		e := *letters[i].Entry
		e.ID = int64(i + 1)
		all.add(&e)
	}
	numbers := map[any]int{}
	for i, key := range sortedKeys(all.groups, cmp.Compare[string]) {
		numbers[key] = i + 1
	}
	for i, key := range sortedKeys(all.counts, compareCounts) {
		numbers[key] = i + 1
	}
	for i, key := range sortedKeys(all.hours, compareHours) {
		numbers[key] = i + 1
	}
	in := sqldb.Map(letters, func(e *letterRow) []any {
		return []any{
			numbers[e.Fingerprint], numbers[countKey{e.EventType, e.Origin.Topic}],
			numbers[hourKey{hourOf(e.CreatedAt), e.Fingerprint}],
		}
	})
	tables := map[string]counterWrite{"": {upsertion{columns: []string{"group", "count", "hour"}}, in}}
	for _, w := range all.writes(d) {
		tables[w.table] = w
	}
	return sqldb.Map(statisticParameters, func(p *statisticParameter) any {
		w := tables[p.table]
		return columnArray(postgresType(p.parameter), w.rows, slices.Index(w.columns, p.column))
	})
}

func (d postgres) putOne(ctx context.Context, s *Store, letter *letterRow) (map[driver.Key]int64, error) {
	var stored sql.Null[int64]
	args := append(letter.newValues(), letter.Cause, d.time(hourOf(letter.CreatedAt)))
	if err := s.write.QueryRowContext(ctx, putLetter, args...).Scan(&stored); err != nil {
		return nil, fmt.Errorf("new letter: %w", err)
	}
	if !stored.Valid {
		return nil, nil
	}
	return map[driver.Key]int64{letter.Key: stored.V}, nil
}

// postgresTypes are the types of the parameters that are neither text nor columns of dlq_entries. payload_json is sent
// as text, because the driver would parse jsonb to send an array of it.
var postgresTypes = map[string]string{
	"id": "bigint", "message_uuid": "bytea", "payload": "bytea", "payload_sha256": "bytea", "entry_id": "bigint", "at": "timestamptz",
	"in_group": "integer", "in_count": "integer", "in_hour": "integer", "group_at": "integer",
	"group_first": "timestamptz", "group_last": "timestamptz", "hour_at": "timestamptz", "v_hour": "timestamptz",
	"group_new": "bigint", "count_new": "bigint", "hour_new": "bigint",
}

func postgresType(name string) string {
	if kind := postgresTypes[name]; kind != "" {
		return kind
	}
	if i := slices.Index(entryColumns, name); i >= 0 {
		return columns[i].kind
	}
	return "text"
}

// insertUnnest is an INSERT of any number of rows. Each column is an array, or a single value if it is the same in all
// rows, as in most columns of a bulk change's audit records.
func insertUnnest(table string, columns []string, rows [][]any) (query string, args []any) {
	values := make([]string, len(columns))
	args = make([]any, len(columns))
	for i, column := range columns {
		kind := postgresType(column)
		if i > 0 && len(rows) > 1 && constant(rows, i) {
			values[i], args[i] = "?::"+kind, rows[0][i]
		} else {
			values[i], args[i] = "unnest(?::"+kind+"[])", columnArray(kind, rows, i)
		}
		if column == "payload_json" {
			values[i] += "::jsonb"
		}
	}
	return "INSERT INTO " + table + " (" + strings.Join(columns, ", ") + ") SELECT " + strings.Join(values, ", "), args
}

// constant reports whether all rows have the same value in a column. Bytes are not compared: they are hardly ever
// equal.
func constant(rows [][]any, column int) bool {
	first := rows[0][column]
	if _, binary := first.([]byte); binary {
		return false
	}
	return !slices.ContainsFunc(rows[1:], func(row []any) bool {
		_, binary := row[column].([]byte)
		return binary || !equalValues(first, row[column])
	})
}

// columnArray turns a column of the rows into a slice whose nil elements are NULL. If all are, it is empty: PostgreSQL
// fills up an array that is shorter than the others with NULL.
func columnArray(kind string, rows [][]any, column int) any {
	switch kind {
	case "bytea":
		array, some := make([][]byte, len(rows)), false
		for i, row := range rows {
			array[i], _ = row[column].([]byte)
			some = some || array[i] != nil
		}
		if !some {
			return [][]byte{}
		}
		return array
	case "integer", "bigint":
		return pointers(rows, column, asInt)
	case "timestamptz":
		return pointers(rows, column, func(value any) time.Time { t, _ := value.(time.Time); return t })
	default:
		return pointers(rows, column, func(value any) string { s, _ := value.(string); return s })
	}
}

func pointers[T any](rows [][]any, column int, read func(any) T) []*T {
	values, array, some := make([]T, len(rows)), make([]*T, len(rows)), false
	for i, row := range rows {
		if value := row[column]; value != nil {
			values[i] = read(value)
			array[i], some = &values[i], true
		}
	}
	if !some {
		return []*T{}
	}
	return array
}
