package sqlstore_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/internal/logbuffer"
)

// The database is killed twice under load: afterwards every accepted dead letter is stored once, and the spool is
// empty.
func TestLetters_DatabaseKilledUnderLoad(t *testing.T) {
	t.Parallel()
	services.EachDatabase(t, killUnderLoad)
}

func killUnderLoad(t *testing.T, server services.DatabaseServer) {
	t.Helper()
	url := server.Database(t)
	letters, err := dlq.Open(t.Context(), url, dlq.WithSpool(t.TempDir()), dlq.WithStoreTimeout(time.Second),
		dlq.WithImportBackoff(10*time.Millisecond, 100*time.Millisecond), dlq.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	defer func() { require.NoError(t, letters.Close()) }()

	var taken atomic.Int64
	stop := make(chan struct{})
	var consumers sync.WaitGroup
	for range 16 {
		consumers.Go(func() {
			pace := time.NewTicker(5 * time.Millisecond)
			defer pace.Stop()
			for {
				select {
				case <-stop:
					return
				case <-pace.C:
				}
				n := taken.Add(1)
				d := death(0)
				d.Message.Metadata[envelope.KeyMessageID] = fmt.Sprintf("event-%d", n)
				if !assert.NoError(t, letters.DeadLetter(t.Context(), d)) {
					return
				}
			}
		})
	}
	for range 2 {
		stored := countLetters(t, letters)
		waitFor(t, "letters in the store", func() bool { return countLetters(t, letters) > stored+50 })
		require.NoError(t, server.Kill())
		spooled := letters.Stats().Appended
		waitFor(t, "letters in the spool", func() bool { return letters.Stats().Appended > spooled+50 })
		require.NoError(t, server.Start(t.Context()))
		waitFor(t, "the store is in use again", func() bool { return !letters.Stats().StoreDown })
	}
	close(stop)
	consumers.Wait()
	waitFor(t, "an empty spool", func() bool { return letters.Stats().Bytes == 0 })

	found := map[string]bool{}
	page := dlq.Page{Limit: driver.MaxPage}
	for {
		var listing driver.Listing
		waitFor(t, "a page, although the first use of an old connection fails", func() bool {
			listing, err = letters.Store().List(t.Context(), dlq.Filter{}, page)
			return err == nil
		})
		for _, e := range listing.Entries {
			require.False(t, found[e.EventID], "%s is stored twice", e.EventID)
			found[e.EventID] = true
		}
		if page.After = listing.Next; page.After == "" {
			break
		}
	}
	require.Len(t, found, int(taken.Load()), "one row per accepted letter")
	var stats driver.Stats
	waitFor(t, "statistics", func() bool {
		stats, err = letters.Store().Stats(t.Context(), dlq.StatsQuery{})
		return err == nil
	})
	require.Equal(t, taken.Load(), stats.Counts.Pending)
	spool := letters.Stats()
	require.Zero(t, spool.Damaged+spool.Refused)
	t.Logf("%d letters, %d of them through the spool", taken.Load(), spool.Appended)
}

// While a failover is in progress the address leads to a server that is read-only. The store kept connections that it
// made then for half an hour, and every letter went to the spool.
func TestLetters_FailoverToAReadOnlyServer(t *testing.T) {
	t.Parallel()
	server, log := services.SharedPostgres(t), &logbuffer.Buffer{}
	url := server.Database(t)
	letters, err := dlq.Open(t.Context(), url, dlq.WithSpool(t.TempDir()), dlq.WithStoreTimeout(time.Second),
		dlq.WithImportBackoff(10*time.Millisecond, 100*time.Millisecond),
		dlq.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	require.NoError(t, err)
	defer func() { require.NoError(t, letters.Close()) }()
	restore := server.FailOver(t, url)
	await.True(t, func() bool {
		require.NoError(t, letters.DeadLetter(t.Context(), death(0)))
		return strings.Contains(strings.ReplaceAll(log.String(), "-", " "), "read only")
	})
	restore()
	waitFor(t, "the store is in use again", func() bool {
		return !letters.Stats().StoreDown && letters.Stats().Bytes == 0
	})
	waitFor(t, "letters in the store", func() bool { return countLetters(t, letters) > 0 })
}

// countLetters returns how many letters the store has, and 0 while it is down.
func countLetters(t *testing.T, letters *dlq.Letters) int64 {
	t.Helper()
	n, err := letters.Store().Count(t.Context(), dlq.Filter{}, 0)
	if err != nil {
		return 0
	}
	return n
}

// waitFor waits until a condition holds.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	await.True(t, holds, what)
}
