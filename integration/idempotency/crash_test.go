package idempotency_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/kill9"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/idempotency"
	"github.com/redrive-go/redrive/middleware/idempotency/sqlstore"
)

// A consumer process gets the URLs of its broker and of its database.
const (
	consumerBroker   = "REDRIVE_TEST_CONSUMER_BROKER"
	consumerDatabase = "REDRIVE_TEST_CONSUMER_DATABASE"
)

// A consumer dies before the commit of its effect, right after it, or before the ack.
const (
	inTransaction = "in the transaction"
	afterCommit   = "after the commit"
	beforeAck     = "before the ack"
)

// consumer charges each order once, until it dies or is killed.
func consumer() int {
	if err := consume(context.Background(), os.Getenv(consumerBroker), os.Getenv(consumerDatabase)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1
}

func consume(ctx context.Context, brokerURL, databaseURL string) error {
	quiet := slog.New(slog.DiscardHandler)
	db, dialect, err := openDB(databaseURL)
	if err != nil {
		return err
	}
	store, err := sqlstore.New(ctx, db, dialect)
	if err != nil {
		return err
	}
	broker, err := brokers.Open(ctx, brokerURL, brokers.WithConfig(func(c *brokers.Config) {
		c.Group, c.Concurrency, c.Logger, c.PublishTimeout = "billing", 4, quiet, await.Patience
	}))
	if err != nil {
		return err
	}
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker, DeadLetters: broker, Logger: quiet,
		Backoff: middleware.Constant(10 * time.Millisecond),
	})
	if err != nil {
		return err
	}
	guard, err := idempotency.New(idempotency.Config{
		Store: store, Consumer: "billing", Lease: 3 * time.Second, Logger: quiet,
		Busy: func(err error, _ time.Duration) error { return middleware.Defer(err, 50*time.Millisecond) },
	})
	if err != nil {
		return err
	}
	handle := pipeline.Middleware(guard.Middleware(func(m *message.Message) ([]*message.Message, error) {
		err := store.InTx(m.Context(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(m.Context(), "INSERT INTO charges (id) VALUES ('"+m.UUID+"')")
			if err == nil {
				kill9.At(inTransaction)
			}
			return err
		})
		if err == nil {
			kill9.At(afterCommit)
		}
		return nil, err
	}))
	messages, err := broker.Subscriber().Subscribe(ctx, "orders")
	if err != nil {
		return err
	}
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for m := range messages {
				if _, err := handle(m); err != nil {
					m.Nack()
					continue
				}
				kill9.At(beforeAck)
				m.Ack()
			}
		})
	}
	workers.Wait()
	return errors.New("the subscription has ended")
}

// If processes are killed with SIGKILL before the commit of their effect, right after it, or right before the ack, each
// effect happens once, however often its message was delivered.
func TestEffect_HappensOnceWhenProcessesAreKilled(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) (d database, broker string){
		"PostgreSQL": func(t *testing.T) (database, string) {
			t.Helper()
			d := openDatabase(t, postgres(t))
			return d, with(d.url, "x-lease=3s")
		},
		"MariaDB": func(t *testing.T) (database, string) {
			t.Helper()
			d := openDatabase(t, mariaDB(t))
			return d, with(d.url, "x-lease=3s")
		},
		"MySQL": func(t *testing.T) (database, string) {
			t.Helper()
			d := openDatabase(t, mySQL(t))
			return d, with(d.url, "x-lease=3s")
		},
		"SQLite": func(t *testing.T) (database, string) {
			t.Helper()
			d := openDatabase(t, sqliteFile(t))
			return d, with(d.url, "x-lease=3s&x-poll=10ms")
		},
		"RabbitMQ": func(t *testing.T) (database, string) {
			t.Helper()
			return openDatabase(t, postgres(t)), services.SharedRabbitMQ(t).VHost(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, url := open(t)
			_, err := d.db.ExecContext(t.Context(), "CREATE TABLE charges (id VARCHAR(100))")
			require.NoError(t, err)
			killedConsumers(t, d, url)
		})
	}
}

func killedConsumers(t *testing.T, d database, url string) {
	t.Helper()
	const n = 100
	broker, err := brokers.Open(t.Context(), url, brokers.WithConfig(func(c *brokers.Config) {
		c.Group, c.PublishTimeout = "billing", await.Patience
	}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	require.NoError(t, broker.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("orders"))
	var list []*message.Message
	for i := range n {
		list = append(list, message.NewMessage(fmt.Sprintf("order-%d", i), []byte("{}")))
	}
	require.NoError(t, broker.Publisher().Publish("orders", list...))

	urls := []string{consumerBroker + "=" + url, consumerDatabase + "=" + d.url}
	charges := func() (rows, different int) {
		require.NoError(t, d.db.QueryRowContext(t.Context(), "SELECT count(*), count(DISTINCT id) FROM charges").Scan(&rows,
			&different))
		return rows, different
	}
	for _, where := range []string{inTransaction, afterCommit, beforeAck, afterCommit, beforeAck, inTransaction} {
		kill9.Until(t, where, urls...)
		rows, different := charges()
		require.Equal(t, different, rows, "an effect happened twice, after a kill %s", where)
	}
	kill9.Start(t, "", urls...)
	await.Count(t, n, func() int {
		_, different := charges()
		return different
	}, "an effect is missing")
	rows, _ := charges()
	require.Equal(t, n, rows, "an effect happened twice")
}
