package sqlstore

import (
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Processes that start together all turn the journal of a new file into a write-ahead log: SQLite lets those who meet fail at once,
// without a wait for busy_timeout, and a process would not have come up.
func TestSQLite_ConnectTogether(t *testing.T) {
	t.Parallel()
	drv, err := sqliteDriver("")
	require.NoError(t, err)
	for range 40 {
		c := &pragmaConnector{
			driver: drv, dsn: "file:" + filepath.Join(t.TempDir(), "dead.db"),
			pragmas: []string{"busy_timeout=5000", "synchronous=normal", "journal_mode=WAL"},
		}
		var wg sync.WaitGroup
		start := make(chan struct{})
		for range 8 {
			wg.Go(func() {
				<-start
				conn, err := c.Connect(t.Context())
				if assert.NoError(t, err) {
					assert.NoError(t, conn.Close())
				}
			})
		}
		close(start)
		wg.Wait()
	}
}
