package idempotency_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/internal/logbuffer"
	"github.com/redrive-go/redrive/internal/sqldb"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/idempotency"
	"github.com/redrive-go/redrive/middleware/idempotency/sqlstore"
)

// diskRoom is how large the guard's database may be: a log segment of PostgreSQL has 16 MiB.
const diskRoom = 64 << 20

// While the disk of the guard's database is full, messages are deferred, or handled without a mark. None is
// dead-lettered, and once there is room all of them are handled.
func TestFullDisk_LosesNothing(t *testing.T) {
	t.Parallel()
	for name, fill := range map[string]func(t *testing.T) (d database, free func()){
		"PostgreSQL": func(t *testing.T) (database, func()) {
			t.Helper()
			server := services.Postgres(t, services.PostgresConfig{})
			d := openDatabase(t, server.Database(t))
			require.NoError(t, server.LimitFiles(t.Context(), diskRoom))
			return d, func() { require.NoError(t, server.LimitFiles(t.Context(), services.Unlimited)) }
		},
		"MariaDB": func(t *testing.T) (database, func()) { t.Helper(); return limitedFile(t, services.MariaDB) },
		"MySQL":   func(t *testing.T) (database, func()) { t.Helper(); return limitedFile(t, services.MySQL) },
		"SQLite": func(t *testing.T) (database, func()) {
			t.Helper()
			url := sqliteFile(t)
			db, limit := limited(t, sqliteDSN(url))
			store, err := sqlstore.New(t.Context(), db, sqlstore.SQLite)
			require.NoError(t, err)
			limit(diskRoom / 4 / 4096)
			return database{url: url, db: db, store: store}, func() { limit(diskRoom) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, free := fill(t)
			fullDiskLosesNothing(t, d, free)
		})
	}
}

// limited opens a SQLite file whose size can be limited. The limit is the connection's, and a connection is replaced
// when the time for a statement ends while it runs, as on a busy machine: the next one gets the limit as well.
func limited(t *testing.T, dsn string) (db *sql.DB, limit func(pages int64)) {
	t.Helper()
	var most atomic.Int64
	most.Store(1 << 30)
	pragma := func() string { return fmt.Sprintf("PRAGMA max_page_count = %d", most.Load()) }
	drv := &sqlite.Driver{}
	drv.RegisterConnectionHook(func(conn sqlite.ExecQuerierContext, _ string) error {
		_, err := conn.ExecContext(context.Background(), pragma(), nil)
		return err
	})
	db = sql.OpenDB(sqldb.NewConnector(drv, dsn))
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	db.SetMaxOpenConns(1)
	return db, func(pages int64) {
		most.Store(pages)
		_, err := db.ExecContext(t.Context(), pragma())
		require.NoError(t, err)
	}
}

// limitedFile is a database on a server whose file has a maximum size.
func limitedFile(t *testing.T, start func(t testing.TB, cfg services.MySQLConfig) *services.MySQLServer) (database,
	func(),
) {
	t.Helper()
	limit := func(size int) []string {
		return []string{
			"--innodb-file-per-table=0", fmt.Sprintf("--innodb-data-file-path=ibdata1:12M:autoextend:max:%dM", size>>20),
		}
	}
	server := start(t, services.MySQLConfig{Args: limit(diskRoom)})
	return openDatabase(t, server.Database(t)), func() {
		require.NoError(t, server.RestartWith(t.Context(), limit(4*diskRoom)...))
	}
}

func fullDiskLosesNothing(t *testing.T, d database, free func()) {
	t.Helper()
	var (
		mu      sync.Mutex
		handled = map[string]bool{}
	)
	log := &logbuffer.Buffer{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	broker, err := brokers.Open(t.Context(), "mem://", brokers.WithConfig(func(c *brokers.Config) {
		c.Group, c.Concurrency, c.Logger = "billing", 4, logger
	}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker, DeadLetters: broker, Logger: logger, MaxAttempts: 1,
	})
	require.NoError(t, err)
	guard, err := idempotency.New(idempotency.Config{
		Store: d.store, Consumer: "billing", Lease: 3 * time.Second, Logger: logger,
		Busy: func(err error, _ time.Duration) error { return middleware.Defer(err, 50*time.Millisecond) },
	})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	invoice := make([]byte, 512<<10) // kept with the mark, and cannot be compressed
	_, _ = rand.Read(invoice)
	router.AddHandler("bill", "orders", broker.Subscriber(), "invoices", broker.Publisher(),
		func(m *message.Message) ([]*message.Message, error) {
			mu.Lock()
			defer mu.Unlock()
			handled[m.UUID] = true
			return []*message.Message{message.NewMessage("invoice of "+m.UUID, invoice)}, nil
		}).AddMiddleware(pipeline.Middleware, guard.Middleware)
	router.AddConsumerHandler("invoices", "invoices", broker.Subscriber(brokers.WithGroup("mail")),
		func(*message.Message) error { return nil })
	dead := make(chan string, 1)
	router.AddConsumerHandler("dead", brokers.DefaultNames().For("orders", "billing").Dead,
		broker.Subscriber(brokers.WithGroup("dead")), func(m *message.Message) error { dead <- m.UUID; return nil })
	ended := await.Run(t.Context(), t, router)

	n := 0
	publish := func() {
		n++
		require.NoError(t, broker.Publisher().Publish("orders", message.NewMessage(strconv.Itoa(n), []byte("{}"))))
	}
	done := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(handled)
	}
	await.True(t, func() bool {
		if n < done()+20 {
			publish()
		}
		require.Less(t, n*len(invoice), 2*diskRoom, "the disk is full")
		return strings.Contains(log.String(), "could not be marked")
	})
	for range 20 {
		publish()
	}
	free()
	await.Count(t, n, done)
	require.NoError(t, router.Close())
	require.NoError(t, <-ended)
	require.Empty(t, dead)
}
