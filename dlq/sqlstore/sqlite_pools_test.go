package sqlstore

import (
	"net/url"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Processes that start together all turn the journal of a new file into a write-ahead log: SQLite lets those who meet fail at once,
// without a wait for busy_timeout, and a process would not have come up.
func TestSQLite_OpenedTogether(t *testing.T) {
	t.Parallel()
	for range 40 {
		cfg, err := parseSQLite(&url.URL{Scheme: "sqlite", Path: filepath.Join(t.TempDir(), "dead.db"), RawQuery: "synchronous=normal"})
		require.NoError(t, err)
		drv, err := sqliteDriver("")
		require.NoError(t, err)
		var opening sync.WaitGroup
		start := make(chan struct{})
		for range 8 {
			opening.Go(func() {
				<-start
				write, read := cfg.pools(drv)
				assert.NoError(t, write.PingContext(t.Context()))
				assert.NoError(t, read.PingContext(t.Context()))
				assert.NoError(t, read.Close())
				assert.NoError(t, write.Close())
			})
		}
		close(start)
		opening.Wait()
	}
}
