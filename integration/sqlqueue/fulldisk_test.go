package sqlqueue_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// When the database's disk is full, Publish fails, messages confirmed before are still delivered, and those that cannot
// be rescheduled stay in the queue. Once there is room, all of them are handled.
func TestFullDisk_LosesNothing(t *testing.T) {
	t.Parallel()
	for name, fill := range map[string]func(t *testing.T) (url string, free func()){
		"PostgreSQL": func(t *testing.T) (string, func()) {
			t.Helper()
			server := services.Postgres(t, services.PostgresConfig{})
			require.NoError(t, server.LimitFiles(t.Context(), roomy)) // a log segment has 16 MiB
			return server.Database(t), func() { require.NoError(t, server.LimitFiles(t.Context(), services.Unlimited)) }
		},
		"MariaDB": largest(services.MariaDB),
		"MySQL":   largest(services.MySQL),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fullDiskLosesNothing(t, name, fill)
		})
	}
}

func fullDiskLosesNothing(t *testing.T, database string, fill func(t *testing.T) (url string, free func())) {
	t.Helper()
	url, free := fill(t)
	queue := openQueue(t, with(url, "x-nack-pause=20ms&x-poll=20ms"))
	require.NoError(t, queue.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("jobs"))
	payload := make([]byte, 512<<10) // which cannot be compressed
	_, _ = rand.Read(payload)
	confirmed, refused := map[string]bool{}, map[string]bool{}
	fails := map[string]bool{}
	publish := func() error {
		m := message.NewMessage(watermill.NewUUID(), payload)
		err := queue.Publisher().Publish("jobs", m)
		if err != nil {
			refused[m.UUID] = true
			return err
		}
		fails[m.UUID] = len(confirmed)%4 == 0
		confirmed[m.UUID] = true
		return nil
	}
	for len(refused) < 3 {
		_ = publish()
		require.Less(t, len(confirmed)*len(payload), 2*roomy, "the disk is full")
	}

	// Every fourth message fails at first. A retry stores its payload again, for which there may be no room.
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: queue, DeadLetters: queue, Logger: slog.New(slog.DiscardHandler),
		Backoff: middleware.Constant(10 * time.Millisecond), MaxAttempts: 1000,
	})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(pipeline.Middleware)
	var (
		mu            sync.Mutex
		seen, handled = map[string]int{}, map[string]bool{}
	)
	toFail := maps.Clone(fails)
	router.AddConsumerHandler("work", "jobs", queue.Subscriber(concurrently(64)), func(m *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		if seen[m.UUID]++; toFail[m.UUID] && seen[m.UUID] == 1 {
			return errors.New("not yet")
		}
		handled[m.UUID] = true
		return nil
	})
	require.Error(t, publish(), "the disk is full until the first message is handled")
	ended := await.Run(t.Context(), t, router)
	left := func(ids iter.Seq[string]) func() int {
		return func() (n int) {
			mu.Lock()
			defer mu.Unlock()
			for id := range ids {
				if !handled[id] {
					n++
				}
			}
			return n
		}
	}
	if database == "PostgreSQL" { // the others need room for a lease
		good := slices.DeleteFunc(slices.Collect(maps.Keys(confirmed)), func(id string) bool { return toFail[id] })
		await.None(t, left(slices.Values(good)), "messages whose handlers succeed need no room")
	}
	free()
	await.True(t, func() bool { return publish() == nil }, "there is room")
	await.None(t, left(maps.Keys(confirmed)), "all confirmed messages are handled")
	db := openDB(t, url)
	await.None(t, func() int { return count(t, db, "SELECT count(*) FROM redrive_queue_messages") },
		"a message whose lease was lost before its ack is redelivered")
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
	t.Logf("%d confirmed, %d refused, %d deliveries", len(confirmed), len(refused), total(seen))
	for id := range handled {
		require.True(t, confirmed[id] || refused[id])
	}
	require.Zero(t, count(t, db, "SELECT count(*) FROM redrive_queue_messages"))
}

// largest fills a MySQL or MariaDB, which crashes on errors in its files, but has its own limit.
func largest(start func(t testing.TB, cfg services.MySQLConfig) *services.MySQLServer) func(t *testing.T) (url string,
	free func()) {
	return func(t *testing.T) (string, func()) {
		t.Helper()
		server := start(t, services.MySQLConfig{Args: inOneFile(roomy)})
		return server.Database(t), func() { require.NoError(t, server.RestartWith(t.Context(), inOneFile(4*roomy)...)) }
	}
}

// inOneFile returns arguments that keep all tables in one file with a maximum size.
func inOneFile(size int) []string {
	return []string{
		"--innodb-file-per-table=0",
		fmt.Sprintf("--innodb-data-file-path=ibdata1:12M:autoextend:max:%dM", size>>20),
	}
}

// roomy is how large the databases of a full disk may be.
const roomy = 64 << 20

func total(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}
