package sqlstore

import (
	"context"
	"database/sql"
	"slices"
	"strings"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// maxRows is how many rows a statement has whose parameters are values.
const maxRows = 64

func insertInto(table string, columns []string, rows int) string {
	return "INSERT INTO " + table + " (" + strings.Join(columns, ", ") + ") VALUES " + questionMarks(len(columns), rows)
}

// rowsOf are rows for a table.
type rowsOf struct {
	table   string
	columns []string
	rows    [][]any
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
		entries, err := scanEntries(s.query(ctx, tx, "SELECT "+selectEntry+" FROM dlq_entries WHERE "+in+
			" ORDER BY id"+s.forUpdate(), args...))
		if err != nil {
			return nil, err
		}
		for i := range entries {
			found[entries[i].ID] = &entries[i]
		}
	}
	return found, nil
}
