package sqldb

import (
	"database/sql"
	"slices"
)

// Row is one row of a result.
type Row interface{ Scan(dest ...any) error }

// Each reads and closes a result: Each(db.QueryContext(ctx, query))(read) calls read for each row. It stops at an error
// of the query or of read.
func Each(rows *sql.Rows, err error) func(read func(Row) error) error {
	return func(read func(Row) error) error {
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := read(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	}
}

// All is [Each] for a list: All[T](db.QueryContext(ctx, query))(scan). Without rows the list is nil.
func All[T any](rows *sql.Rows, err error) func(scan func(Row, *T) error) ([]T, error) {
	return func(scan func(Row, *T) error) ([]T, error) {
		var list []T
		err := Each(rows, err)(func(row Row) error {
			if len(list) == cap(list) {
				// append would copy a page of large rows many more times
				list = slices.Grow(list, max(8, len(list)))
			}
			list = list[:len(list)+1]
			return scan(row, &list[len(list)-1])
		})
		if err != nil {
			return nil, err
		}
		return list, nil
	}
}

// Column is [All] for rows of one column.
func Column[T any](rows *sql.Rows, err error) ([]T, error) {
	return All[T](rows, err)(func(row Row, value *T) error { return row.Scan(value) })
}
