package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"iter"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// chunkSizes are the numbers of rows per statement. Only a few sizes, so that the statements can be prepared.
var chunkSizes = []int{64, 32, 16, 8, 4, 2, 1}

// chunks cuts items into parts of these sizes.
func chunks[T any](items []T) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		for _, size := range chunkSizes {
			for len(items) >= size {
				if !yield(items[:size]) {
					return
				}
				items = items[size:]
			}
		}
	}
}

func insertInto(table string, columns []string, rows int) string {
	return "INSERT INTO " + table + " (" + strings.Join(columns, ", ") + ") VALUES " + questionMarks(len(columns), rows)
}

// rowsOf are rows for a table.
type rowsOf struct {
	table   string
	columns []string
	rows    [][]any
}

// insertValues is insertRows for databases without arrays.
func insertValues(ctx context.Context, s *Store, tx *sql.Tx, in rowsOf) error {
	for chunk := range chunks(in.rows) {
		if _, err := s.statements.exec(ctx, tx, insertInto(in.table, in.columns, len(chunk)),
			slices.Concat(chunk...)...); err != nil {
			return err
		}
	}
	return nil
}

// idInList is idIn for databases without arrays.
func idInList(column string, ids []int64) iter.Seq2[string, []any] {
	return func(yield func(string, []any) bool) {
		for chunk := range chunks(ids) {
			args := make([]any, len(chunk))
			for i, id := range chunk {
				args[i] = id
			}
			if !yield(column+" IN "+questionMarks(len(chunk), 1), args) {
				return
			}
		}
	}
}

// scanIDs puts the result of a query, ids and keys, into a map.
func scanIDs(rows *sql.Rows, err error) func(ids map[driver.Key]int64) error {
	return func(ids map[driver.Key]int64) error {
		return sqldb.Each(rows, err)(func(row sqldb.Row) error {
			var id int64
			var key []byte
			if err := row.Scan(&id, &key); err != nil {
				return err
			}
			ids[driver.Key(key)] = id
			return nil
		})
	}
}

// lockEntries reads entries that are about to change, in the order of their ids so that two transactions cannot
// deadlock. Missing ones are not in the map.
func (s *Store) lockEntries(ctx context.Context, tx *sql.Tx, ids []int64) (map[int64]*dlq.Entry, error) {
	found := make(map[int64]*dlq.Entry, len(ids))
	for in, args := range s.dialect.idIn("id", slices.Sorted(slices.Values(ids))) {
		entries, err := scanEntries(s.statements.query(ctx, tx, "SELECT "+selectEntry+" FROM dlq_entries WHERE "+in+
			" ORDER BY id"+s.dialect.forUpdate(), args...))
		if err != nil {
			return nil, err
		}
		for i := range entries {
			found[entries[i].ID] = &entries[i]
		}
	}
	return found, nil
}

func compareIDs(a, b int64) int { return cmp.Compare(a, b) }
