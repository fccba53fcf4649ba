package sqlstore

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Pragma reads a setting of the connection that writes.
func (s *Store) Pragma(t *testing.T, name string) any {
	t.Helper()
	var value any
	require.NoError(t, s.write.QueryRowContext(t.Context(), "PRAGMA "+name).Scan(&value))
	return value
}
