// Package idempotency_test tests package idempotency on real databases and brokers.
package idempotency_test

import (
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/kafka"
	_ "github.com/redrive-go/redrive/brokers/memory"
	_ "github.com/redrive-go/redrive/brokers/rabbitmq"
	_ "github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/idempotency"
	"github.com/redrive-go/redrive/middleware/idempotency/sqlstore"
	"github.com/redrive-go/redrive/middleware/idempotency/storetest"
)

// TestMain is also the main function of the consumer processes that tests start, which kill themselves.
func TestMain(m *testing.M) {
	if os.Getenv(consumerBroker) != "" {
		os.Exit(consumer())
	}
	services.Main(m)
}

// database is an empty database with a store in it.
type database struct {
	url   string
	db    *sql.DB
	store *sqlstore.Store
}

func postgres(t *testing.T) string { t.Helper(); return services.SharedPostgres(t).Database(t) }
func mariaDB(t *testing.T) string  { t.Helper(); return services.SharedMariaDB(t).Database(t) }
func mySQL(t *testing.T) string    { t.Helper(); return services.SharedMySQL(t).Database(t) }
func sqliteFile(t *testing.T) string {
	t.Helper()
	return "sqlite://" + filepath.Join(t.TempDir(), "app.db")
}

func sqliteDSN(url string) string {
	return "file:" + strings.TrimPrefix(url, "sqlite://") +
		"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate"
}

// with adds a parameter to a URL.
func with(url, param string) string {
	if strings.Contains(url, "?") {
		return url + "&" + param
	}
	return url + "?" + param
}

// openDB opens the database of a broker URL as an application would.
func openDB(url string) (*sql.DB, sqlstore.Dialect, error) {
	scheme, _, _ := strings.Cut(url, "://")
	switch scheme {
	case "mysql":
		dsn, err := services.MySQLDSN(url)
		if err != nil {
			return nil, "", err
		}
		db, err := sql.Open("mysql", dsn)
		return db, sqlstore.MySQL, err
	case "sqlite":
		db, err := sql.Open("sqlite", sqliteDSN(url))
		return db, sqlstore.SQLite, err
	default:
		db, err := sql.Open("pgx", url)
		return db, sqlstore.PostgreSQL, err
	}
}

func openDatabase(t *testing.T, url string) database {
	t.Helper()
	// Ten processes that start at once create one table. They connect first, otherwise some would be too late.
	dbs, stores, faults := make([]*sql.DB, 10), make([]*sqlstore.Store, 10), make([]error, 10)
	var dialect sqlstore.Dialect
	for i := range dbs {
		var err error
		dbs[i], dialect, err = openDB(url)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, dbs[i].Close()) })
		// switches SQLite to a write-ahead log, which several connections cannot do at once
		require.NoError(t, dbs[i].PingContext(t.Context()))
	}
	start := make(chan struct{})
	var processes sync.WaitGroup
	for i, db := range dbs {
		processes.Go(func() {
			<-start
			stores[i], faults[i] = sqlstore.New(t.Context(), db, dialect)
		})
	}
	close(start)
	processes.Wait()
	require.NoError(t, errors.Join(faults...))
	for _, db := range dbs[1:] {
		require.NoError(t, db.Close())
	}
	return database{url: url, db: dbs[0], store: stores[0]}
}

func TestStore_Conformance(t *testing.T) {
	for name, url := range map[string]func(t *testing.T) string{
		"PostgreSQL": postgres, "MariaDB": mariaDB, "MySQL": mySQL, "SQLite": sqliteFile,
		// An application's pool may count the rows that a statement found, instead of those that it changed.
		"MariaDB counts found rows": func(t *testing.T) string { t.Helper(); return with(mariaDB(t), "clientFoundRows=true") },
		"MySQL counts found rows":   func(t *testing.T) string { t.Helper(); return with(mySQL(t), "clientFoundRows=true") },
	} {
		t.Run(name, func(t *testing.T) {
			d := openDatabase(t, url(t))
			storetest.Run(t, func(*testing.T) idempotency.Store { return d.store })
			t.Run("Purge", func(t *testing.T) {
				_, err := d.store.Purge(t.Context())
				require.NoError(t, err)
			})
		})
	}
}

// A handler's transaction may outlive a renewal of its claim, which changes the row that the transaction updates last.
// With a snapshot of its beginning the update failed, in every attempt.
func TestInTx_OutlivesARenewal(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]func(t *testing.T) string{
		"PostgreSQL": func(t *testing.T) string {
			t.Helper()
			return with(postgres(t), "default_transaction_isolation=repeatable%20read")
		},
		// the default since 11.6.2
		"MariaDB": func(t *testing.T) string { t.Helper(); return with(mariaDB(t), "innodb_snapshot_isolation=1") },
		"MySQL":   mySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := openDatabase(t, url(t))
			guard, err := idempotency.New(idempotency.Config{Store: d.store, Consumer: "billing", Lease: 2 * time.Second})
			require.NoError(t, err)
			_, err = guard.Middleware(func(m *message.Message) ([]*message.Message, error) {
				return nil, d.store.InTx(m.Context(), func(tx *sql.Tx) error {
					const ends = "SELECT until FROM redrive_processed"
					var began, at int
					err := tx.QueryRowContext(t.Context(), ends).Scan(&began) // takes the snapshot
					await.True(t, func() bool {
						require.NoError(t, d.db.QueryRowContext(t.Context(), ends).Scan(&at))
						return at > began
					})
					return err
				})
			})(message.NewMessage("o", nil))
			require.NoError(t, err)
		})
	}
}

// A purge that finds the lease of a hung owner over waits for the owner's transaction, which then marks the message as
// done. On PostgreSQL it deleted the row nevertheless, and a duplicate ran again.
func TestPurge_KeepsWhatIsMarkedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		url    func(t *testing.T) string
		purges string
	}{
		"PostgreSQL": {postgres, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND " +
			"wait_event_type = 'Lock'"},
		"MariaDB": {mariaDB, "SELECT count(*) FROM information_schema.processlist WHERE db = database() AND " +
			"info LIKE 'DELETE FROM redrive_processed%'"},
		// Its processlist is an error while another test's statement has bytes that are not text.
		"MySQL": {mySQL, "SELECT count(*) FROM performance_schema.threads WHERE processlist_db = database() AND " +
			"processlist_state = 'updating'"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := openDatabase(t, c.url(t))
			guard, err := idempotency.New(idempotency.Config{Store: d.store, Consumer: "billing", Lease: await.Patience})
			require.NoError(t, err)
			runs := 0
			handle := guard.Middleware(func(m *message.Message) ([]*message.Message, error) {
				runs++
				_, err := d.db.ExecContext(m.Context(), "UPDATE redrive_processed SET until = 0")
				require.NoError(t, err)
				tx, err := d.db.BeginTx(m.Context(), nil)
				require.NoError(t, err)
				require.NoError(t, d.store.CompleteTx(m.Context(), tx))
				purged := make(chan error, 1)
				go func() { _, err := d.store.Purge(t.Context()); purged <- err }()
				await.True(t, func() (waits bool) {
					require.NoError(t, d.db.QueryRowContext(t.Context(), c.purges).Scan(&waits))
					return waits || len(purged) > 0
				})
				require.NoError(t, tx.Commit())
				return nil, <-purged
			})
			for range 2 {
				_, err = handle(message.NewMessage("o", nil))
				require.NoError(t, err)
			}
			require.Equal(t, 1, runs)
		})
	}
}

// Every message is published twice, fails at first, is handled by eight concurrent workers, and is redelivered after
// its handler succeeded, as if the process had died before the ack. Its effect, in the handler's transaction, happens
// once.
func TestEffect_HappensOnceOnEveryBroker(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		effects, broker func(t *testing.T) (url string) // no broker: the queue is in the database of the effects
	}{
		"Memory":     {postgres, func(*testing.T) string { return "mem://" }},
		"PostgreSQL": {effects: postgres},
		"MariaDB":    {effects: mariaDB},
		"MySQL":      {effects: mySQL},
		"SQLite":     {effects: sqliteFile},
		"Kafka":      {postgres, func(t *testing.T) string { t.Helper(); return services.SharedKafka(t).URL() }},
		"RabbitMQ":   {postgres, func(t *testing.T) string { t.Helper(); return services.SharedRabbitMQ(t).VHost(t) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := openDatabase(t, c.effects(t))
			url := with(d.url, "x-nack-pause=10ms")
			if c.broker != nil {
				url = c.broker(t)
			}
			broker, err := brokers.Open(t.Context(), url, brokers.WithConfig(func(c *brokers.Config) {
				c.Group, c.Concurrency, c.Logger = "billing", 8, slog.New(slog.DiscardHandler)
				c.PublishTimeout = await.Patience
			}))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, broker.Close()) })
			effectHappensOnce(t, broker, d)
		})
	}
}

func effectHappensOnce(t *testing.T, broker brokers.Broker, d database) {
	t.Helper()
	const n = 200
	_, err := d.db.ExecContext(t.Context(), "CREATE TABLE charges (id VARCHAR(100))")
	require.NoError(t, err)
	quiet := slog.New(slog.DiscardHandler)
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker,
		DeadLetters: broker,
		Backoff:     middleware.Constant(10 * time.Millisecond),
		Logger:      quiet,
	})
	require.NoError(t, err)
	guard, err := idempotency.New(idempotency.Config{
		// No claim may expire because the machine is busy, otherwise the handler would run again.
		Store: d.store, Consumer: "billing", Lease: await.Patience, Logger: quiet,
		Busy: func(err error, _ time.Duration) error { return middleware.Defer(err, 20*time.Millisecond) },
	})
	require.NoError(t, err)

	var (
		mu       sync.Mutex
		attempts = map[string]int{}
		crashed  = map[string]bool{}
		settled  = map[string]int{}
	)
	charge := guard.Middleware(func(m *message.Message) ([]*message.Message, error) {
		mu.Lock()
		attempts[m.UUID]++
		first := attempts[m.UUID] == 1
		mu.Unlock()
		return nil, d.store.InTx(m.Context(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(m.Context(), "INSERT INTO charges VALUES ('"+m.UUID+"')")
			if err == nil && first {
				err = errors.New("the payment service is down")
			}
			return err
		})
	})
	// The crash is the outermost middleware, so the outcome is decided and the ack is lost.
	h := pipeline.Middleware(charge)
	crashing := func(m *message.Message) error {
		if _, err := h(m); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if attempts[m.UUID] > 1 && !crashed[m.UUID] {
			crashed[m.UUID] = true
			return errors.New("killed before the ack")
		}
		settled[m.UUID]++
		return nil
	}

	topic := "orders-" + strings.ToLower(strings.NewReplacer("/", "-").Replace(t.Name()))
	messages, err := broker.Subscriber().Subscribe(t.Context(), topic)
	require.NoError(t, err)
	var list []*message.Message
	for i := range n {
		for range 2 {
			list = append(list, message.NewMessage(fmt.Sprintf("%s-%d", topic, i), []byte("{}")))
		}
	}
	require.NoError(t, broker.Publisher().Publish(topic, list...))
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for m := range messages {
				if crashing(m) != nil {
					m.Nack()
				} else {
					m.Ack()
				}
			}
		})
	}
	await.Count(t, n, func() (done int) {
		mu.Lock()
		defer mu.Unlock()
		for i := range n {
			if id := fmt.Sprintf("%s-%d", topic, i); crashed[id] && settled[id] >= 2 {
				done++
			}
		}
		return done
	})
	require.NoError(t, broker.Close())
	workers.Wait()

	// A concurrent delivery and one after the success do not run the handler: it fails once and succeeds once.
	for id, times := range attempts {
		require.Equal(t, 2, times, "how often the handler of %s ran", id)
	}
	var rows, different int
	require.NoError(t, d.db.QueryRowContext(t.Context(), "SELECT count(*), count(DISTINCT id) FROM charges").Scan(&rows,
		&different))
	require.Equal(t, n, different, "an effect is missing")
	require.Equal(t, n, rows, "an effect happened twice")
}
