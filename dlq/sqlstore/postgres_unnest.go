package sqlstore

import (
	"slices"
	"strings"
	"time"
)

// postgresTypes are the types of the parameters that are neither text nor columns of dlq_entries. payload_json is sent
// as text: the driver cannot send an array of jsonb without parsing it.
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

// insertUnnest is an INSERT of any number of rows: each column is an array whose values are streamed into the rows, or
// one value for all rows, as most columns of the records of a bulk change are.
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
	for _, row := range rows[1:] {
		if _, binary := row[column].([]byte); binary || !equalValues(first, row[column]) {
			return false
		}
	}
	return true
}

// columnArray turns a column of the rows into a slice whose nil elements are NULL. It is empty if all are, which costs
// neither side anything: a shorter array than others is filled up with NULL.
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
