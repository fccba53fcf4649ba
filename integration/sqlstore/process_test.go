package sqlstore_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/sqlstore"
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

// Two processes repeatedly dead-letter the same deliveries, in opposite orders and in large calls: each delivery has
// one row, and no call fails because of a deadlock.
func TestPut_TwoProcessesOppositeOrders(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
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
