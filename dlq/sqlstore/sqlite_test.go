package sqlstore_test

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/dlq/dlqtest"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
)

func TestSQLite_Conformance(t *testing.T) {
	t.Parallel()
	dlqtest.Run(t, func(t *testing.T) dlqtest.Database {
		t.Helper()
		// The suite kills no process, so it need not wait for the disk. TestProcess_Killed does, with the default.
		url := "sqlite:" + filepath.Join(t.TempDir(), "dead.db") + "?synchronous=normal&busy-timeout=1m"
		return func(t *testing.T) dlqtest.Store {
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

// Two processes change entries at the same time: each waits for the other. A transaction that took the write lock only
// at its first write would fail, because its reads are stale by then.
func TestSQLite_TwoWriters(t *testing.T) {
	t.Parallel()
	url := "sqlite:" + filepath.Join(t.TempDir(), "dead.db") + "?synchronous=normal&busy-timeout=1m"
	const changes = 60
	var wg sync.WaitGroup
	start := make(chan struct{})
	for n := range 2 {
		s := open(t, url)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		receipts, err := s.Put(t.Context(), entry(n, time.Now()))
		require.NoError(t, err)
		wg.Go(func() {
			<-start
			for i := range changes {
				results, err := s.Change(t.Context(), driver.Change{
					Action: []driver.Action{driver.ActionDiscard, driver.ActionRestore}[i%2], IDs: []int64{receipts[0].ID},
					Version: int64(i + 1),
					Actor:   "ana", At: time.Now(),
				})
				if !assert.NoError(t, err) || !assert.NoError(t, results[0].Err) {
					return
				}
			}
		})
	}
	close(start)
	wg.Wait()
}
