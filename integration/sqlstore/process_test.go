package sqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/integration/await"
)

// Ten processes that start at once on an empty database create one schema, and each stores its letter.
func TestOpen_TenAtOnce(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		stores := make([]*sqlstore.Store, 10)
		faults := make([]error, len(stores))
		var processes sync.WaitGroup
		for i := range stores {
			processes.Go(func() {
				if stores[i], faults[i] = sqlstore.Open(t.Context(), with(url, "writers=2&readers=1")); faults[i] == nil {
					_, faults[i] = stores[i].Put(t.Context(), letter(i, time.Now()))
				}
			})
		}
		processes.Wait()
		require.NoError(t, errors.Join(faults...))
		n, err := stores[0].Count(t.Context(), dlq.Filter{}, 0)
		require.NoError(t, err)
		require.Equal(t, int64(len(stores)), n)
		for _, s := range stores {
			require.NoError(t, s.Close())
		}
		db := openDB(t, url)
		require.Empty(t, rowsOf(t, db, "SELECT version_id FROM dlq_schema_version GROUP BY version_id HAVING count(*) > 1"))
	})
}

// deadlocks is how many transactions the server has aborted because of a deadlock. MySQL and MariaDB count those of all
// databases: tests that use it are not parallel.
func deadlocks(t *testing.T, db *sql.DB, url string) int64 {
	t.Helper()
	var version string
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT version()").Scan(&version))
	query := "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
	switch {
	case strings.HasPrefix(url, "postgres"):
		await.True(t, func() bool { // a session reports its numbers when it ends
			return len(rowsOf(t, db, "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"+
				" AND pid <> pg_backend_pid() AND backend_type = 'client backend'")) == 0
		}, "the sessions of the stores have ended")
		query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
	case strings.Contains(version, "MariaDB"):
		query = "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'Innodb_deadlocks'"
	}
	var n int64
	require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

// withoutDeadlocks runs what processes do at once on each server, and fails if the server had to abort any of them: a
// store repeats such transactions, which hides a wrong order of its locks until the load is high.
func withoutDeadlocks(t *testing.T, run func(t *testing.T, url string)) {
	t.Helper()
	for name, database := range servers {
		t.Run(name, func(t *testing.T) {
			url := database(t)
			db := openDB(t, url)
			db.SetMaxOpenConns(1)
			before := deadlocks(t, db, url)
			run(t, url)
			require.Equal(t, before, deadlocks(t, db, url))
		})
	}
}

// Two processes repeatedly dead-letter the same deliveries, in opposite orders and in large calls: each delivery has
// one row, and none of the calls is aborted because of a deadlock.
func TestPut_TwoProcessesOppositeOrders(t *testing.T) {
	withoutDeadlocks(t, func(t *testing.T, url string) {
		t.Helper()
		const letters, rounds = 300, 4
		at := time.Now()
		stores := []*sqlstore.Store{openStore(t, url), openStore(t, url)}
		faults := make([]error, len(stores))
		var processes sync.WaitGroup
		for p, s := range stores {
			processes.Go(func() {
				for range rounds {
					list := make([]*dlq.Entry, letters)
					for i := range list {
						n := i
						if p == 1 {
							n = letters - 1 - i
						}
						list[i] = letter(n, at)
					}
					_, err := s.Put(t.Context(), list...)
					faults[p] = errors.Join(faults[p], err)
				}
			})
		}
		processes.Wait()
		require.NoError(t, errors.Join(faults...))
		listing, err := stores[0].List(t.Context(), dlq.Filter{}, dlq.Page{Limit: driver.MaxPage})
		require.NoError(t, err)
		require.Len(t, listing.Entries, letters)
		for _, e := range listing.Entries {
			require.Equal(t, len(stores)*rounds, e.SeenCount)
		}
		stats, err := stores[1].Stats(t.Context(), dlq.StatsQuery{})
		require.NoError(t, err)
		require.Equal(t, int64(letters), stats.Counts.Pending)
		for _, s := range stores {
			require.NoError(t, s.Close())
		}
	})
}

// The processes of a service report at the same moments, and none of the reports is aborted because of a deadlock.
func TestBeat_ManyProcesses(t *testing.T) {
	withoutDeadlocks(t, func(t *testing.T, url string) {
		t.Helper()
		const processes, rounds = 8, 25
		s := openStore(t, with(url, "writers=8"))
		var running sync.WaitGroup
		faults := make([]error, processes)
		for p := range processes {
			running.Go(func() {
				for range rounds {
					_, err := s.Beat(t.Context(), &driver.ServiceReport{
						Service: "billing", Process: fmt.Sprintf("pod-%d", p), At: time.Now(),
					})
					faults[p] = errors.Join(faults[p], err)
				}
			})
		}
		running.Wait()
		require.NoError(t, errors.Join(faults...))
		require.NoError(t, s.Close())
	})
}
