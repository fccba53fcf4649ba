// Package storetest gives each test an empty store in a SQLite file. Creating the tables costs more than most tests do,
// so it happens once for each test program, and a test gets a copy of the file.
package storetest

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/sqlstore"
)

var empty struct {
	sync.Mutex
	file []byte
}

// File returns the path of a new file with a store that has nothing in it. The test program imports the driver.
func File(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "dead.db")
	require.NoError(t, os.WriteFile(path, contents(t), 0o600))
	return path
}

func contents(t testing.TB) []byte {
	t.Helper()
	empty.Lock()
	defer empty.Unlock()
	if empty.file == nil {
		path := filepath.Join(t.TempDir(), "empty.db")
		s, err := sqlstore.Open(t.Context(), "sqlite:"+path)
		require.NoError(t, err)
		require.NoError(t, s.Close())
		empty.file, err = os.ReadFile(path)
		require.NoError(t, err)
	}
	return empty.file
}
