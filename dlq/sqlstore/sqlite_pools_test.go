package sqlstore

import (
	"net/url"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Processes that start together all switch a new file's journal to a write-ahead log: SQLite fails concurrent ones at
// once, ignoring busy_timeout, and a process would not have started.
func TestSQLite_OpenedTogether(t *testing.T) {
	t.Parallel()
	for range 40 {
		cfg, err := parseURL(&url.URL{
			Scheme: "sqlite", Path: filepath.Join(t.TempDir(), "dead.db"),
			RawQuery: "synchronous=normal",
		})
		require.NoError(t, err)
		var opening sync.WaitGroup
		start := make(chan struct{})
		for range 8 {
			opening.Go(func() {
				<-start
				var s Store
				assert.NoError(t, cfg.pools(t.Context(), &s))
				assert.NoError(t, s.write.PingContext(t.Context()))
				assert.NoError(t, s.read.PingContext(t.Context()))
				assert.NoError(t, s.closeDB())
			})
		}
		close(start)
		opening.Wait()
	}
}
