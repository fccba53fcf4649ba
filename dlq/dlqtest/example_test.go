package dlqtest_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/dlq/dlqtest"
	"github.com/redrive-go/redrive/dlq/sqlstore"
)

// A test of a store runs the suite. Each test of the suite gets an empty database, and opens it several times where it
// needs several processes.
func ExampleRun() {
	testStore := func(t *testing.T) {
		t.Helper()
		dlqtest.Run(t, func(t *testing.T) dlqtest.Database {
			t.Helper()
			path := filepath.Join(t.TempDir(), "dead.db")
			return func(t *testing.T) dlqtest.Store {
				t.Helper()
				s, err := sqlstore.Open(t.Context(), path)
				require.NoError(t, err)
				return s
			}
		})
	}
	_ = testStore // func TestStore(t *testing.T) in your package
}
