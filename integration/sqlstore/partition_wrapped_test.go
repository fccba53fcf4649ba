package sqlstore_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqmetrics"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// A Manager drops months through all wrappers that Letters puts around a store: the observer of the metrics, and the
// one that waits for a database that was down. If entries were purged one by one, the table would remain and grow.
func TestPartition_PurgeThroughWrappers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ metrics, late bool }{
		"plain":                 {},
		"metrics":               {metrics: true},
		"a late store":          {late: true},
		"metrics, a late store": {metrics: true, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := servers["PostgreSQL"](t)
			s := openStore(t, url)
			closed := closedLongAgo(t, s)
			require.NoError(t, s.Close())

			opts := []dlq.Option{dlq.WithLogger(slog.New(slog.DiscardHandler))}
			if c.metrics {
				metrics, err := dlqmetrics.New(dlqmetrics.Config{})
				require.NoError(t, err)
				opts = append(opts, dlq.WithObserver(metrics))
			}
			letters := openLetters(t, url, c.late, opts...)
			db := openDB(t, url)
			_, err := db.ExecContext(t.Context(), "ANALYZE")
			require.NoError(t, err)
			n, err := letters.Manager(nil).Purge(t.Context(), dlq.Purge{
				ClosedBefore: time.Now().AddDate(0, 0, -90), Actor: "cron",
			})
			require.NoError(t, err)
			require.Equal(t, closed, n)
			require.Equal(t, [][]any{{true}}, rowsOf(t, db, "SELECT to_regclass('dlq_entries_before') IS NULL"),
				"the table of the earlier months was dropped instead of emptied")
		})
	}
}

// closedLongAgo stores letters that were resolved long ago, and returns their number.
func closedLongAgo(t *testing.T, s dlq.Store) int {
	t.Helper()
	at := time.Now().AddDate(0, 0, -200)
	letters := make([]*dlq.Entry, 110)
	for i := range letters {
		letters[i] = letter(i, at)
	}
	receipts, err := s.Put(t.Context(), letters...)
	require.NoError(t, err)
	ids := make([]int64, len(receipts))
	for i, r := range receipts {
		ids[i] = r.ID
	}
	_, err = s.Change(t.Context(), driver.Change{
		Action: driver.ActionResolve, IDs: ids, Actor: "ana", At: at.AddDate(0, 0, 1),
	})
	require.NoError(t, err)
	return len(ids)
}

// openLetters opens a partitioned store as services do; with late, the database is only available afterwards.
func openLetters(t *testing.T, url string, late bool, opts ...dlq.Option) *dlq.Letters {
	t.Helper()
	if !late {
		letters, err := dlq.Open(t.Context(), with(url, byMonth), append(opts, dlq.WithoutSpool())...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, letters.Close()) })
		return letters
	}
	proxy := services.NewProxy(t, url)
	require.NoError(t, proxy.Cut())
	letters, err := dlq.Open(t.Context(), with(proxy.URL(t, url), byMonth), append(opts, dlq.WithSpool(t.TempDir()),
		dlq.WithImportBackoff(5*time.Millisecond, 50*time.Millisecond))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, letters.Close()) })
	require.True(t, letters.Stats().StoreDown)
	require.NoError(t, proxy.Heal())
	await.True(t, func() bool { return !letters.Stats().StoreDown }, "the store is open")
	return letters
}
