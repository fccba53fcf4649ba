package sqlstore_test

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// When the database's disk is full, dead letters go to the spool and stored ones can be read, and once there is room
// all of them are in the store, once and byte for byte.
func TestLetters_DatabaseFull(t *testing.T) {
	t.Parallel()
	const room = 24 << 20 // a log segment has 16 MiB
	server := services.Postgres(t, services.PostgresConfig{})
	letters, err := dlq.Open(t.Context(), server.Database(t), dlq.WithSpool(t.TempDir()),
		dlq.WithImportBackoff(10*time.Millisecond, 100*time.Millisecond), dlq.WithStoreTimeout(await.Patience),
		dlq.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	defer func() { require.NoError(t, letters.Close()) }()
	require.NoError(t, server.LimitFiles(t.Context(), room))
	body := make([]byte, 512<<10) // which cannot be compressed
	_, _ = rand.Read(body)
	payload := func(n int) []byte { return binary.BigEndian.AppendUint64(bytes.Clone(body), uint64(n)) }
	taken := map[string]int{}
	for n := 0; letters.Stats().Appended < 5; n++ {
		require.Less(t, n*len(body), 4*room, "the disk is full")
		d := death(0)
		d.Message.Payload = payload(n)
		id := watermill.NewUUID()
		d.Message.Metadata[envelope.KeyMessageID] = id
		require.NoError(t, letters.DeadLetter(t.Context(), d))
		taken[id] = n
	}
	stored, err := letters.Store().Count(t.Context(), dlq.Filter{}, 0)
	require.NoError(t, err, "reading needs no room")
	require.Less(t, int(stored), len(taken))
	require.NoError(t, server.LimitFiles(t.Context(), services.Unlimited))
	waitFor(t, "an empty spool", func() bool { return letters.Stats().Bytes == 0 })

	listing, err := letters.Store().List(t.Context(), dlq.Filter{}, dlq.Page{Limit: driver.MaxPage})
	require.NoError(t, err)
	require.Len(t, listing.Entries, len(taken))
	for i := range listing.Entries {
		e := &listing.Entries[i]
		n, ok := taken[e.EventID]
		require.True(t, ok, "one row per letter")
		delete(taken, e.EventID)
		full, err := letters.Store().Body(t.Context(), e.ID, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(payload(n), full.Payload))
	}
	spool := letters.Stats()
	require.Zero(t, spool.Damaged+spool.Refused)
	t.Logf("%d letters, %d of them through the spool", len(listing.Entries), spool.Appended)
}
