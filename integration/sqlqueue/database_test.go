package sqlqueue_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// receive waits for one message.
func receive(t *testing.T, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m := <-messages:
		require.NotNil(t, m, "the subscription has ended")
		return m
	case <-time.After(await.Patience):
		require.FailNow(t, "no message came")
		return nil
	}
}

// A state change and its event are in one transaction: both are stored or neither is.
func TestTxPublisher_Outbox(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, url string) {
		t.Helper()
		db := openDB(t, url)
		_, err := db.ExecContext(t.Context(), "CREATE TABLE orders (id VARCHAR(20) PRIMARY KEY)")
		require.NoError(t, err)
		queue := openQueue(t, url)
		messages, err := queue.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)

		for _, order := range []struct {
			id     string
			commit bool
		}{{"lost", false}, {"kept", true}} {
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			_, err = tx.ExecContext(t.Context(), "INSERT INTO orders VALUES ('"+order.id+"')")
			require.NoError(t, err)
			require.NoError(t, queue.TxPublisher(tx).Publish("orders", message.NewMessage(order.id, payload)))
			if order.commit {
				require.NoError(t, tx.Commit())
			} else {
				require.NoError(t, tx.Rollback())
			}
		}
		m := receive(t, messages)
		require.Equal(t, "kept", m.UUID)
		m.Ack()
		require.Equal(t, 1, count(t, db, "SELECT count(*) FROM orders"))
	})
}

// A group receives what is published after it has subscribed, also by a transaction that began before: MySQL's default
// level, REPEATABLE READ, only shows a transaction the groups of its beginning. On a topic that was new meanwhile,
// Publish failed.
func TestTxPublisher_GroupOfLater(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		queue, db := openQueue(t, url), openDB(t, url)
		_, err := queue.Subscriber(inGroup("first")).Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "SELECT count(*) FROM redrive_queues") // a snapshot
		require.NoError(t, err)
		later, err := queue.Subscriber(inGroup("later")).Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		fresh, err := queue.Subscriber(inGroup("later")).Subscribe(t.Context(), "fresh")
		require.NoError(t, err)
		require.NoError(t, queue.TxPublisher(tx).Publish("orders", message.NewMessage("o", payload)))
		require.NoError(t, queue.TxPublisher(tx).Publish("fresh", message.NewMessage("f", payload)))
		require.NoError(t, tx.Commit())
		for _, messages := range []<-chan *message.Message{later, fresh} {
			receive(t, messages).Ack()
		}
	})
}

// The effect of a handler in InTx happens once, even though the message is delivered until it succeeds.
func TestInTx_EffectHappensOnce(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, url string) {
		t.Helper()
		db := openDB(t, url)
		_, err := db.ExecContext(t.Context(), "CREATE TABLE account (balance INT)")
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), "INSERT INTO account VALUES (0)")
		require.NoError(t, err)
		queue := openQueue(t, with(url, "x-nack-pause=10ms"))
		messages, err := queue.Subscriber().Subscribe(t.Context(), "deposits")
		require.NoError(t, err)
		require.NoError(t, queue.Publisher().Publish("deposits", message.NewMessage("d", payload)))
		results, err := queue.Subscriber().Subscribe(t.Context(), "results")
		require.NoError(t, err)

		deposit := func(m *message.Message, fail error) error {
			return sqlqueue.InTx(m.Context(), func(tx *sql.Tx) error {
				if _, err := tx.ExecContext(m.Context(), "UPDATE account SET balance = balance + 10"); err != nil {
					return err
				}
				return errors.Join(queue.TxPublisher(tx).Publish("results", message.NewMessage("r", nil)), fail)
			})
		}
		boom := errors.New("boom")
		m := receive(t, messages)
		require.ErrorIs(t, deposit(m, boom), boom)
		m.Nack()
		m = receive(t, messages)
		require.NoError(t, deposit(m, nil))
		require.ErrorIs(t, deposit(m, nil), sqlqueue.ErrNoDelivery, "the message is acked")
		m.Ack()
		receive(t, results).Ack()
		require.Equal(t, 10, count(t, db, "SELECT balance FROM account"))
		await.True(t, func() bool {
			return count(t, db, "SELECT count(*) FROM redrive_queue_messages") == 0
		})
	})
}

// A handler's transaction may outlive a renewal of the lease, which changes the row that the transaction deletes last.
// With a snapshot of its beginning the ack failed, in every delivery.
func TestInTx_OutlivesARenewal(t *testing.T) {
	t.Parallel()
	for name, params := range map[string]string{
		"PostgreSQL": "default_transaction_isolation=repeatable%20read",
		"MariaDB":    "innodb_snapshot_isolation=1", // the default since 11.6.2
		"MySQL":      "transaction_isolation=%27REPEATABLE-READ%27",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := servers[name](t)
			db, queue := openDB(t, url), openQueue(t, with(url, "x-lease=12s&"+params))
			messages, err := queue.Subscriber().Subscribe(t.Context(), "orders")
			require.NoError(t, err)
			require.NoError(t, queue.Publisher().Publish("orders", message.NewMessage("o", payload)))
			m := receive(t, messages)
			require.NoError(t, sqlqueue.InTx(m.Context(), func(tx *sql.Tx) error {
				ends := "SELECT visible_at FROM redrive_queue_messages"
				var at int
				err := tx.QueryRowContext(t.Context(), ends).Scan(&at) // takes the snapshot
				await.True(t, func() bool { return count(t, db, ends) > at })
				return err
			}))
			m.Ack()
			require.Zero(t, count(t, db, "SELECT count(*) FROM redrive_queue_messages"))
		})
	}
}

// Due times do not depend on the time zone of the session.
func TestDelay_DoesNotDependOnTimeZones(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		database  func(t testing.TB) string
		east, far string
	}{
		"PostgreSQL": {servers["PostgreSQL"], "timezone=Asia/Tokyo", "timezone=America/Sao_Paulo"},
		"MariaDB":    {servers["MariaDB"], "time_zone=%27%2B09:00%27", "time_zone=%27-03:00%27"},
		"MySQL":      {servers["MySQL"], "time_zone=%27%2B09:00%27", "time_zone=%27-03:00%27"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := c.database(t)
			tokyo, saoPaulo := openQueue(t, with(url, c.east)), openQueue(t, with(url, c.far))
			for _, pair := range [][2]*sqlqueue.Broker{{tokyo, saoPaulo}, {saoPaulo, tokyo}} {
				ctx, cancel := context.WithCancel(t.Context())
				messages, err := pair[1].Subscriber().Subscribe(ctx, "reminders")
				require.NoError(t, err)
				m := message.NewMessage("m", payload)
				envelope.SetDelay(m, 700*time.Millisecond)
				began := time.Now()
				require.NoError(t, pair[0].Publisher().Publish("reminders", m))
				got := receive(t, messages)
				took := time.Since(began)
				got.Ack()
				cancel()
				require.GreaterOrEqual(t, took, 700*time.Millisecond, "early")
			}
		})
	}
}

// A forgotten open transaction blocks nothing, and costs little; it stalls watermill-sql's subscribers
// (TestWatermillSQL_StallsBehindATransaction).
func TestForeignTransaction_DoesNotStall(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		const n = 5000
		db := openDB(t, url)
		_, err := db.ExecContext(t.Context(), "CREATE TABLE other (id INT)")
		require.NoError(t, err)
		forgotten, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		require.NoError(t, err)
		defer func() { require.NoError(t, forgotten.Rollback()) }()
		_, err = forgotten.ExecContext(t.Context(), "INSERT INTO other VALUES (1)")
		require.NoError(t, err)

		queue := openQueue(t, url)
		messages, err := queue.Subscriber(brokers.WithConcurrency(16)).Subscribe(t.Context(), "jobs")
		require.NoError(t, err)
		began := time.Now()
		go func() {
			for range n / 100 {
				_ = queue.Publisher().Publish("jobs", batch(100)...) // a failure shows as a missing message
			}
		}()
		for range n {
			receive(t, messages).Ack()
		}
		t.Logf("%d messages in %s", n, time.Since(began))
	})
}

// Ten processes that start at once create one schema.
func TestMigrate_TenAtOnce(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		dbs := make([]*sql.DB, 10)
		for i := range dbs {
			dbs[i] = openDB(t, url)
			require.NoError(t, dbs[i].PingContext(t.Context())) // a process that connects later would be too late
		}
		dialect := sqlqueue.PostgreSQL
		if strings.HasPrefix(url, "mysql:") {
			dialect = sqlqueue.MySQL
		}
		faults := make([]error, len(dbs))
		var processes sync.WaitGroup
		start := make(chan struct{})
		for i, db := range dbs {
			processes.Go(func() {
				<-start
				faults[i] = sqlqueue.Migrate(t.Context(), db, dialect)
			})
		}
		close(start)
		processes.Wait()
		require.NoError(t, errors.Join(faults...))
		require.Equal(t, 1, count(t, dbs[0], "SELECT count(*) FROM redrive_queue_schema WHERE version_id > 0"))
	})
}

// No statement for publishing, claiming, renewing, acking, nacking or rescheduling reads the whole table, however large
// it is.
func TestBacklog_IsNeverScanned(t *testing.T) {
	t.Parallel()
	const waiting, n = 100_000, 500
	url := services.SharedPostgres(t).Database(t)
	db := openDB(t, url)
	open := func() *sqlqueue.Broker {
		b, err := brokers.Open(t.Context(), with(url, "x-lease=6s&x-nack-pause=1ms"))
		require.NoError(t, err)
		queue, ok := b.(*sqlqueue.Broker)
		require.True(t, ok)
		return queue
	}
	setup := open()
	require.NoError(t, setup.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("jobs"))
	require.NoError(t, setup.Close())
	_, err := db.ExecContext(t.Context(), `INSERT INTO redrive_queue_messages
		(queue_id, visible_at, due_at, published_at, uuid, headers, payload)
		SELECT id, 4000000000000000 + i, 4000000000000000 + i, 0, 'w', '{}', '' FROM redrive_queues, generate_series(1, $1::int) i`, waiting)
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), "ANALYZE redrive_queue_messages")
	require.NoError(t, err)
	before := count(t, db, "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'redrive_queue_messages'")

	queue := open()
	messages, err := queue.Subscriber(concurrently(8)).Subscribe(t.Context(), "jobs")
	require.NoError(t, err)
	require.NoError(t, queue.Publisher().Publish("jobs", batch(n)...))
	slow := receive(t, messages) // one of eight handlers runs until its lease has been renewed
	for i := 1; i < n; {
		m := receive(t, messages)
		origin, ok := envelope.OriginFrom(m.Context())
		require.True(t, ok)
		switch {
		case m.Metadata.Get("again") != "" || origin.DeliveryCount > 1:
			m.Ack()
			i++
		case i%2 == 0:
			again := m.Copy()
			again.Metadata.Set("again", "1")
			require.NoError(t, queue.Reschedule(t.Context(), *origin, again, time.Millisecond))
			m.Ack()
		default:
			m.Nack()
		}
	}
	origin, ok := envelope.OriginFrom(slow.Context())
	require.True(t, ok)
	renewed := fmt.Sprintf("SELECT count(*) FROM redrive_queue_messages WHERE id = %d AND lease > 0", *origin.Offset)
	await.True(t, func() bool { return count(t, db, renewed) == 1 }, "the lease is not renewed")
	slow.Ack()
	require.NoError(t, queue.Close(), "its sessions flush their statistics when they end")
	await.True(t, func() bool {
		return count(t, db, "SELECT n_tup_del FROM pg_stat_user_tables WHERE relname = 'redrive_queue_messages'") >= n
	})
	after := count(t, db, "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'redrive_queue_messages'")
	require.Equal(t, before, after)
}

// Statements that were planned while the queue was empty do not continue to read the whole table once it has grown.
func TestBacklog_ThatGrewFastIsNotScanned(t *testing.T) {
	t.Parallel()
	const waiting, n = 200_000, 300
	url := services.SharedPostgres(t).Database(t)
	db := openDB(t, url)
	queue := openQueue(t, url)
	messages, err := queue.Subscriber(concurrently(8)).Subscribe(t.Context(), "jobs")
	require.NoError(t, err)
	process := func() {
		for range n {
			require.NoError(t, queue.Publisher().Publish("jobs", batch(1)...))
			receive(t, messages).Ack()
		}
	}
	process()
	_, err = db.ExecContext(t.Context(), `INSERT INTO redrive_queue_messages
		(queue_id, visible_at, due_at, published_at, uuid, headers, payload)
		SELECT id, 4000000000000000 + i, 4000000000000000 + i, 0, 'w', '{}', '' FROM redrive_queues, generate_series(1, $1::int) i`, waiting)
	require.NoError(t, err)
	// They may be those of a moment at which a part of the rows was written: the rest is less than three times as much.
	await.Count(t, 1, func() int {
		return count(t, db, `SELECT count(*) FROM pg_class WHERE relname = 'redrive_queue_messages'
			AND pg_relation_size(oid) / current_setting('block_size')::int <= 4 * relpages`)
	}, "the statistics are not refreshed")

	// Sessions report their statistics about a second late, so a round ends once its deletions have been reported.
	reported := func(column string) int {
		return count(t, db, "SELECT "+column+" FROM pg_stat_user_tables WHERE relname = 'redrive_queue_messages'")
	}
	round := func() (scans int) {
		deleted := reported("n_tup_del")
		process()
		await.Count(t, deleted+n, func() int { return reported("n_tup_del") })
		return reported("seq_scan")
	}
	before := round()
	await.True(t, func() bool {
		now := round()
		quiet := now == before
		before = now
		return quiet
	}, "messages that are not due were read")
}
