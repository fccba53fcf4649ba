package sql

import "testing"

// Adapters are the default ones for PostgreSQL.
func Adapters(t *testing.T) (PostgresSchema, PostgresOffsets) {
	t.Helper()
	return newPostgres(1)
}
