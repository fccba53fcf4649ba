package sqlqueue_test

import (
	"bytes"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	processed "github.com/redrive-go/redrive/middleware/idempotency/sqlstore"
)

// The operator of a server chooses what its sessions begin with. What Publish has confirmed is committed nevertheless,
// for every group of the topic. A batch that is larger than a packet is stored in several statements.
func TestSession_OfTheServer(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB, services.MySQLConfig) *services.MySQLServer{
		"MariaDB": services.MariaDB, "MySQL": services.MySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, services.MySQLConfig{
				Args: []string{"--autocommit=0", "--completion-type=1", "--sql-mode=", "--max-allowed-packet=1M"},
			})
			url := server.Database(t)
			db := openDB(t, with(url, "autocommit=1&completion_type=0&sql_select_limit=100"))
			_, err := db.ExecContext(t.Context(), "SET GLOBAL sql_select_limit = 1")
			require.NoError(t, err)
			queue := openQueue(t, url)
			groups := map[string]<-chan *message.Message{}
			for _, group := range []string{"one", "two"} {
				messages, err := queue.Subscriber(brokers.WithGroup(group)).Subscribe(t.Context(), "jobs")
				require.NoError(t, err)
				groups[group] = messages
			}
			require.NoError(t, queue.Publisher().Publish("jobs", message.NewMessage("1", payload)))
			for group, messages := range groups {
				m := receive(t, messages)
				require.Equal(t, "1", m.UUID, group)
				m.Ack()
			}
			large := batch(200)
			for _, m := range large {
				m.Payload = bytes.Repeat([]byte("x"), 10_000)
			}
			require.NoError(t, queue.Publisher().Publish("later", large...))
			require.NoError(t, queue.Close())
			require.Equal(t, len(large), count(t, db, "SELECT count(*) FROM redrive_queue_messages"))
		})
	}
}

// A row of another program may fill a packet, and the server ends a connection on which it gets more: the row's dead
// letter fits nevertheless. What no packet can hold is refused for good, and the store does not count as unreachable.
func TestSession_PacketIsFull(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB, services.MySQLConfig) *services.MySQLServer{
		"MariaDB": services.MariaDB, "MySQL": services.MySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const packet = 1 << 20
			url := start(t, services.MySQLConfig{Args: []string{"--max-allowed-packet=1M"}}).Database(t)
			queue := openQueue(t, url)
			messages, err := queue.Subscriber().Subscribe(t.Context(), "jobs")
			require.NoError(t, err)
			_, err = openDB(t, url).ExecContext(t.Context(), `INSERT INTO redrive_queue_messages
				(queue_id, visible_at, due_at, published_at, uuid, headers, payload)
				SELECT id, 0, 0, 0, 'full', '{}', repeat('x', ?) FROM redrive_queues`, packet-30)
			require.NoError(t, err)
			m := receive(t, messages)
			origin, _ := envelope.OriginFrom(m.Context())
			letter := &envelope.DeadLetter{Message: m, Origin: *origin, Reason: envelope.ReasonPermanent, At: time.Now()}
			require.NoError(t, queue.DeadLetter(t.Context(), letter))
			m.Ack()

			store, err := sqlstore.Open(t.Context(), url)
			require.NoError(t, err)
			defer func() { require.NoError(t, store.Close()) }()
			m.Metadata.Set("note", strings.Repeat("x", packet))
			_, err = store.Put(t.Context(), dlq.NewEntry(letter))
			require.ErrorIs(t, err, dlq.ErrInvalid)
		})
	}
}

// A topic that a transaction has created, and takes back, is not one to publish to, although READ UNCOMMITTED shows it.
func TestSession_ReadUncommitted(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(testing.TB, services.MySQLConfig) *services.MySQLServer{
		"MariaDB": services.MariaDB, "MySQL": services.MySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := start(t, services.MySQLConfig{Args: []string{"--transaction-isolation=READ-UNCOMMITTED"}}).Database(t)
			queue, db := openQueue(t, url), openDB(t, url)
			tx, err := db.BeginTx(t.Context(), nil)
			require.NoError(t, err)
			require.NoError(t, queue.TxPublisher(tx).Publish("jobs", message.NewMessage("rolled back", payload)))
			published := make(chan error, 1)
			go func() { published <- queue.Publisher().Publish("jobs", message.NewMessage("confirmed", payload)) }()
			// Not information_schema.innodb_trx, which changes only when no one has read it for 100 ms.
			waits := "SELECT count(*) FROM information_schema.processlist WHERE id <> connection_id()" +
				" AND info LIKE 'SELECT id FROM redrive_queues%LOCK IN SHARE MODE'"
			await.True(t, func() bool { return len(published) > 0 || count(t, db, waits) > 0 })
			require.NoError(t, tx.Rollback())
			require.NoError(t, <-published)
			messages, err := queue.Subscriber().Subscribe(t.Context(), "jobs")
			require.NoError(t, err)
			m := receive(t, messages)
			require.Equal(t, "confirmed", m.UUID)
			m.Ack()
		})
	}
}

// A pool that counts the rows that a statement found, instead of those that it changed, has every group. With it the
// first group of a topic seemed to be created again and again, and no other could subscribe.
func TestSession_CountsFoundRows(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"MariaDB", "MySQL"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := openQueue(t, with(servers[name](t), "clientFoundRows=true"))
			require.NoError(t, queue.Publisher().Publish("jobs", message.NewMessage("early", payload)))
			want := []string{"early", "late"}
			for _, group := range []string{"first", "second"} {
				messages, err := queue.Subscriber(inGroup(group), concurrently(1)).Subscribe(t.Context(), "jobs")
				require.NoError(t, err)
				require.NoError(t, queue.Publisher().Publish("jobs", message.NewMessage("late", payload)))
				for _, id := range want {
					m := receive(t, messages)
					require.Equal(t, id, m.UUID)
					m.Ack()
				}
				want = want[1:] // a later group gets what is published after it has subscribed
			}
		})
	}
}

// What Publish has confirmed is on the disk, even where the database's default is not to wait for it.
func TestSession_SynchronousCommit(t *testing.T) {
	t.Parallel()
	url := servers["PostgreSQL"](t)
	_, err := openDB(t, url).ExecContext(t.Context(), "DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || "+
		"' SET synchronous_commit = off'; END $$")
	require.NoError(t, err)
	queue, db := openQueue(t, url), openDB(t, url)
	// The trigger records the setting of the transaction that stores.
	for _, statement := range []string{
		"CREATE TABLE seen (message TEXT, setting TEXT)",
		`CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO seen VALUES (NEW.uuid, current_setting('synchronous_commit')); RETURN NEW; END $$`,
		"CREATE TRIGGER note AFTER INSERT ON redrive_queue_messages FOR EACH ROW EXECUTE FUNCTION note()",
	} {
		_, err := db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	messages, err := queue.Subscriber().Subscribe(t.Context(), "jobs")
	require.NoError(t, err)
	m := message.NewMessage("one", payload)
	require.NoError(t, queue.Publisher().Publish("jobs", m))
	got := receive(t, messages)
	origin, ok := envelope.OriginFrom(got.Context())
	require.True(t, ok)
	require.NoError(t, sqlqueue.InTx(got.Context(), func(tx *sql.Tx) error {
		return queue.TxPublisher(tx).Publish("results", message.NewMessage("outbox", payload))
	}))
	got.Ack()
	require.NoError(t, queue.Reschedule(t.Context(), *origin, message.NewMessage("retry", payload), time.Minute))
	require.NoError(t, queue.Publisher().Publish("jobs", batch(600)...))
	require.Equal(t, 1+1+1+600, count(t, db, "SELECT count(*) FROM seen"))
	require.Zero(t, count(t, db, "SELECT count(*) FROM seen WHERE setting <> 'on'"))
}

// A pool of the application that would lose or truncate rows without an error is refused.
func TestSession_OfTheApplicationsPool(t *testing.T) {
	t.Parallel()
	for params, want := range map[string]string{
		"autocommit=0":       "autocommit=1",
		"charset=utf8":       "charset=utf8mb4",
		"completion_type=1":  "completion_type=0",
		"sql_select_limit=9": "sql_select_limit=18446744073709551615",
		"sql_mode=%27%27":    "sql_mode='STRICT_ALL_TABLES'",
	} {
		for _, server := range []string{"MariaDB", "MySQL"} {
			db := openDB(t, with(servers[server](t), params))
			_, err := sqlqueue.New(t.Context(), db, sqlqueue.MySQL)
			require.ErrorContains(t, err, want, server)
			_, err = sqlstore.New(t.Context(), db, sqlstore.Config{Dialect: sqlstore.MySQL})
			require.ErrorContains(t, err, want, server)
			_, err = processed.New(t.Context(), db, processed.MySQL)
			require.ErrorContains(t, err, want, server)
		}
	}
}
