package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"iter"
	"strings"

	"github.com/redrive-go/redrive/dlq"
)

// chunkSizes are the numbers of rows that one statement has. A few fixed ones, so that the statements can be prepared.
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

// lockEntries reads entries that are about to change, in the order of their ids so that two transactions cannot wait for each
// other. Those that are not there are not in the map.
func (s *Store) lockEntries(ctx context.Context, tx *sql.Tx, ids []int64) (map[int64]*dlq.Entry, error) {
	found := make(map[int64]*dlq.Entry, len(ids))
	for chunk := range chunks(ids) {
		args := make([]any, len(chunk))
		for i, id := range chunk {
			args[i] = id
		}
		rows, err := s.statements.query(ctx, tx, "SELECT "+selectEntry+" FROM dlq_entries WHERE id IN "+questionMarks(len(chunk), 1)+
			" ORDER BY id"+s.dialect.forUpdate(), args...)
		if err != nil {
			return nil, err
		}
		entries, err := scanEntries(rows)
		if err != nil {
			return nil, err
		}
		for i := range entries {
			found[entries[i].ID] = &entries[i]
		}
	}
	return found, nil
}

func (s *Store) updateEntry(ctx context.Context, tx *sql.Tx, e *dlq.Entry) error {
	_, err := s.statements.exec(ctx, tx, updateState, stateValues(s.dialect, e)...)
	return err
}

func compareIDs(a, b int64) int { return cmp.Compare(a, b) }
