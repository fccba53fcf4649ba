package sql

import "testing"

// Adapters are the default ones for PostgreSQL.
func Adapters(t *testing.T) (postgresSchema, postgresOffsets) {
	t.Helper()
	return newPostgres(1)
}

// The adapters, for tests of what they write and read.
type (
	MySQLSchema    = mySQLSchema
	PostgresSchema = postgresSchema
)
