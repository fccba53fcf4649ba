package sqlstore_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqtest"
	"github.com/redrive-go/redrive/dlq/sqlstore"
)

func TestSQLite_Conformance(t *testing.T) {
	t.Parallel()
	dlqtest.Run(t, func(t *testing.T) dlqtest.Database {
		t.Helper()
		// The suite kills no process: so it need not wait for the disk. TestProcess_Killed does, with the default.
		url := "sqlite:" + filepath.Join(t.TempDir(), "dead.db") + "?synchronous=normal"
		return func(t *testing.T) dlq.Store {
			t.Helper()
			return open(t, url)
		}
	})
}

func open(t testing.TB, url string) *sqlstore.Store {
	t.Helper()
	s, err := sqlstore.Open(t.Context(), url)
	require.NoError(t, err)
	return s
}
