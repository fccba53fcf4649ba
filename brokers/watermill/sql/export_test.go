package sql

import "testing"

// Adapters are those for PostgreSQL by default.
func Adapters(t *testing.T) (PostgresSchema, PostgresOffsets) {
	t.Helper()
	return newPostgres(1, false)
}
