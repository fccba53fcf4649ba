package sqlqueue_test

import (
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// Acks of messages under one lease share a statement with acks of messages under another. If the other lease is lost,
// the rest must still be stored.
func TestAcks_SharedWithALostLease(t *testing.T) {
	t.Parallel()
	url := services.SharedPostgres(t).Database(t)
	db := openDB(t, url)
	queue := openQueue(t, url)
	messages, err := queue.Subscriber(concurrently(3)).Subscribe(t.Context(), "jobs")
	require.NoError(t, err)
	var held []*message.Message
	for _, id := range []string{"first", "lost", "kept"} { // each claimed separately, with its own lease
		require.NoError(t, queue.Publisher().Publish("jobs", message.NewMessage(id, payload)))
		held = append(held, receive(t, messages))
	}
	require.Equal(t, 3, count(t, db, "SELECT count(*) FROM redrive_queue_leases"))

	// The ack of the first message waits for a lock, and those of the others accumulate.
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = tx.ExecContext(t.Context(), "SELECT 1 FROM redrive_queue_messages WHERE uuid = 'first' FOR UPDATE")
	require.NoError(t, err)
	held[0].Ack()
	await.True(t, func() bool {
		return count(t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type "+
			"= 'Lock'") == 1
	})
	_, err = db.ExecContext(t.Context(), `DELETE FROM redrive_queue_leases WHERE ids =
		ARRAY(SELECT id FROM redrive_queue_messages WHERE uuid = 'lost')`)
	require.NoError(t, err)
	// The lease is another worker's.
	_, err = db.ExecContext(t.Context(), `UPDATE redrive_queue_messages SET lease = 42, deliveries = 2,
		visible_at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 3600000000 WHERE uuid = 'lost'`)
	require.NoError(t, err)
	held[1].Ack()
	held[2].Ack()
	<-held[1].Context().Done() // their acks have been accepted
	<-held[2].Context().Done()
	require.NoError(t, tx.Rollback())

	await.True(t, func() bool {
		return count(t, db, "SELECT count(*) FROM redrive_queue_messages WHERE uuid <> 'lost'") == 0
	}, "an ack in the same batch as the lost one is missing")
	_, err = db.ExecContext(t.Context(), "UPDATE redrive_queue_messages SET visible_at = due_at WHERE uuid = 'lost'")
	require.NoError(t, err)
	// When the other worker's lease has expired, the message is redelivered. It has been handled here, so its ack counts
	// now.
	await.True(t, func() bool { return count(t, db, "SELECT count(*) FROM redrive_queue_messages") == 0 })
	require.EqualValues(t, 1, queue.Replays())
	select {
	case m := <-messages:
		require.FailNow(t, "the handler runs again", m.UUID)
	default:
	}
}

// Messages of one batch share a lease. If an ack cannot be stored, the lease stays until it is: no other worker gets
// the message when the rest of the batch is settled.
func TestAcks_NextToAFailedOne(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		refuse func(t *testing.T, db *sql.DB) (refused func() bool, accept func())
		settle func(other *message.Message) bool
	}{
		"refused, and acks":   {refuseAck, (*message.Message).Ack},
		"refused, and a nack": {refuseAck, (*message.Message).Nack},
		"locked, and acks":    {blockAck, (*message.Message).Ack},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := services.SharedPostgres(t).Database(t)
			db, queue := openDB(t, url), openQueue(t, with(url, "x-nack-pause=1m"))
			require.NoError(t, queue.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("jobs"))
			require.NoError(t, queue.Publisher().Publish("jobs", message.NewMessage("held", payload),
				message.NewMessage("other", payload), message.NewMessage("last", payload)))
			messages, err := queue.Subscriber(concurrently(4)).Subscribe(t.Context(), "jobs")
			require.NoError(t, err)
			batch := map[string]*message.Message{} // several handlers get them in any order
			for range 3 {
				m := receive(t, messages)
				batch[m.UUID] = m
			}
			require.Equal(t, 3, count(t, db, "SELECT cardinality(ids) FROM redrive_queue_leases"), "they share a lease")
			left := func(rows string) {
				t.Helper()
				await.None(t, func() int { return count(t, db, "SELECT count(*) FROM redrive_queue_messages WHERE "+rows) })
			}

			refused, accept := tc.refuse(t, db)
			defer accept()
			batch["held"].Ack()
			await.True(t, refused)
			tc.settle(batch["other"])
			left("uuid = 'other' AND lease IS NULL")
			batch["last"].Ack()
			left("uuid = 'last'")
			require.Zero(t, count(t, db, `SELECT count(*) FROM redrive_queue_claim((SELECT id FROM redrive_queues),
				99, 0, 30000000, 100) WHERE row_uuid = 'held'`), "another worker gets the message")
			accept()
			left("uuid = 'held'")
			require.Zero(t, queue.AcksFailed())
		})
	}
}

// refuseAck makes PostgreSQL refuse the acks of the message "held" until accept.
func refuseAck(t *testing.T, db *sql.DB) (refused func() bool, accept func()) {
	t.Helper()
	_, err := db.ExecContext(t.Context(), `CREATE SEQUENCE refusals;
		CREATE FUNCTION refuse() RETURNS TRIGGER LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'refusal %', nextval('refusals'); END $$;
		CREATE TRIGGER refuse BEFORE DELETE ON redrive_queue_messages FOR EACH ROW WHEN (OLD.uuid = 'held')
		EXECUTE FUNCTION refuse()`)
	require.NoError(t, err)
	refused = func() bool { return count(t, db, "SELECT count(*) FROM refusals WHERE is_called") == 1 }
	return refused, func() {
		_, err := db.ExecContext(t.Context(), "DROP TRIGGER IF EXISTS refuse ON redrive_queue_messages")
		require.NoError(t, err)
	}
}

// blockAck locks the row of the message "held" until accept.
func blockAck(t *testing.T, db *sql.DB) (refused func() bool, accept func()) {
	t.Helper()
	accept = lockRow(t, db, "held")
	return func() bool {
		return count(t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type "+
			"= 'Lock'") == 1
	}, accept
}

// A claim that starts in the middle of the index does not end expired leases, and does not treat their rows as new
// either. One that starts at the beginning counts the crash.
func TestClaim_CountsTheCrashOfASharedLease(t *testing.T) {
	t.Parallel()
	url := services.SharedPostgres(t).Database(t)
	db := openDB(t, url)
	queue := openQueue(t, url)
	require.NoError(t, queue.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("jobs"))
	require.NoError(t, queue.Publisher().Publish("jobs", batch(2)...))
	claim := func(low int) string {
		return fmt.Sprintf(`SELECT count(*) + 10 * coalesce(sum(row_deliveries), 0) + 100 * coalesce(sum(row_crashes), 0)
			FROM redrive_queue_claim((SELECT id FROM redrive_queues), 1, %d, 30000000, 100)`, low)
	}
	require.Equal(t, 22, count(t, db, claim(0)), "two rows, each for the first time")
	_, err := db.ExecContext(t.Context(), "UPDATE redrive_queue_leases SET until = (extract(epoch FROM "+
		"clock_timestamp()) * 1000000)::bigint - 1")
	require.NoError(t, err)
	require.Zero(t, count(t, db, claim(1)))
	require.Equal(t, 242, count(t, db, claim(0)), "two rows, each for the second time, with a crash each")
}

// When many workers of several processes claim concurrently, each message is delivered once.
func TestClaims_AreDisjoint(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, url string) {
		t.Helper()
		const n, processes = 4000, 4
		setup := openQueue(t, url)
		require.NoError(t, setup.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("jobs"))
		for range n / 500 {
			require.NoError(t, setup.Publisher().Publish("jobs", batch(500)...))
		}
		var (
			mu       sync.Mutex
			runs     = map[string]int{}
			handlers sync.WaitGroup
		)
		queues := make([]*sqlqueue.Broker, processes)
		for i := range queues {
			queues[i] = openQueue(t, with(url, "x-max-connections=4"))
			messages, err := queues[i].Subscriber(concurrently(16)).Subscribe(t.Context(), "jobs")
			require.NoError(t, err)
			for range 16 {
				handlers.Go(func() {
					for m := range messages {
						mu.Lock()
						runs[m.UUID]++
						mu.Unlock()
						m.Ack()
					}
				})
			}
		}
		await.Count(t, n, func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(runs)
		}, "messages are missing")
		for _, queue := range queues {
			require.NoError(t, queue.Close())
		}
		handlers.Wait()
		for id, times := range runs {
			require.Equal(t, 1, times, id)
		}
		require.Zero(t, count(t, openDB(t, url), "SELECT count(*) FROM redrive_queue_messages"))
	})
}

// A row that is locked, by an operator's forgotten transaction or an ack in flight, is skipped: those behind it are
// delivered, and it follows once the lock is released.
func TestClaims_SkipLockedRows(t *testing.T) {
	t.Parallel()
	const givenBack, dead = "UPDATE redrive_queue_messages SET lease = 0, deliveries = 1",
		"UPDATE redrive_queue_messages SET lease = 99, deliveries = 1"
	onMySQL := map[string]string{
		"given back": givenBack, "of a dead worker": dead,
		"new": "UPDATE redrive_queue_messages SET lease = NULL",
	}
	cases := map[string]map[string]string{
		"PostgreSQL": { // there, new rows are leased without being read
			"given back": givenBack, "of a dead worker": dead,
			"of a dead worker's batch": `INSERT INTO redrive_queue_leases (queue_id, worker, until, ids)
				SELECT queue_id, 99, (extract(epoch FROM now()) * 1000000)::bigint - 1000000, ARRAY[id] FROM redrive_queue_messages`,
		},
		"MariaDB": onMySQL,
		"MySQL":   onMySQL,
	}
	for server, database := range servers {
		for name, prepare := range cases[server] {
			for _, handlers := range []int{1, 2} { // this one preserves the order, and waits a moment
				t.Run(fmt.Sprintf("%s %s with %d", server, name, handlers), func(t *testing.T) {
					t.Parallel()
					url := database(t)
					db, queue := openDB(t, url), openQueue(t, url)
					require.NoError(t, queue.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("jobs"))
					require.NoError(t, queue.Publisher().Publish("jobs", message.NewMessage("locked", payload),
						message.NewMessage("other", payload)))
					_, err := db.ExecContext(t.Context(), prepare+" WHERE uuid = 'locked'")
					require.NoError(t, err)
					tx, err := db.BeginTx(t.Context(), nil)
					require.NoError(t, err)
					defer func() { _ = tx.Rollback() }() // already ended, unless the test has failed
					_, err = tx.ExecContext(t.Context(), fmt.Sprintf("SELECT 1 FROM redrive_queue_messages WHERE id = %d FOR UPDATE",
						count(t, db, "SELECT id FROM redrive_queue_messages WHERE uuid = 'locked'")))
					require.NoError(t, err)

					messages, err := queue.Subscriber(concurrently(handlers)).Subscribe(t.Context(), "jobs")
					require.NoError(t, err)
					m := receive(t, messages)
					require.Equal(t, "other", m.UUID)
					m.Ack()
					require.NoError(t, tx.Rollback())
					m = receive(t, messages)
					require.Equal(t, "locked", m.UUID)
					m.Ack()
				})
			}
		}
	}
}

// An ack or a nack touches only its own row: a locked row, like those that claims lock, does not delay it. On MariaDB
// it used to, because the planner treated a newly filled table as empty and read all of it; claims then skipped the
// rows that the ack had locked meanwhile, and messages were delivered out of order.
func TestSettlements_DoNotWaitForOtherRows(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		db := openDB(t, url)
		queue := openQueue(t, with(url, "x-nack-pause=1ms"))
		messages, err := queue.Subscriber().Subscribe(t.Context(), "jobs")
		require.NoError(t, err)
		list := batch(6)
		// the locked row: its own ack would wait, and those stored with it
		envelope.SetDelay(list[5], time.Hour)
		require.NoError(t, queue.Publisher().Publish("jobs", list...))
		acked := receive(t, messages)

		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback()) }()
		last := count(t, db, "SELECT max(id) FROM redrive_queue_messages")
		_, err = tx.ExecContext(t.Context(), fmt.Sprintf("SELECT 1 FROM redrive_queue_messages WHERE id = %d FOR UPDATE",
			last))
		require.NoError(t, err)

		left := func(n int) func() bool {
			return func() bool { return count(t, db, "SELECT count(*) FROM redrive_queue_messages") == n }
		}
		acked.Ack()
		await.True(t, left(5), "the ack waits for another row")
		nacked := receive(t, messages)
		require.Equal(t, list[1].UUID, nacked.UUID)
		nacked.Nack()
		again := receive(t, messages)
		for again.UUID != nacked.UUID {
			again.Ack()
			again = receive(t, messages)
		}
		origin, _ := envelope.OriginFrom(again.Context())
		require.NoError(t, queue.Reschedule(t.Context(), *origin, again.Copy(), time.Hour))
		again.Ack()
	})
}

// The ids of rows and of their shared leases start over when an operator truncates the tables. Old handlers then must
// not settle new rows with the same ids, even under a lease with the same id.
func TestClaim_OldSettlementsIgnoreRowsWithReusedIDs(t *testing.T) {
	t.Parallel()
	const n = 10
	url := services.SharedPostgres(t).Database(t)
	db := openDB(t, url)
	ours, other := openQueue(t, with(url, "x-prefetch=0")), openQueue(t, with(url, "x-prefetch=0"))
	messages, err := ours.Subscriber(concurrently(n)).Subscribe(t.Context(), "jobs")
	require.NoError(t, err)
	marks, err := ours.Subscriber().Subscribe(t.Context(), "marks")
	require.NoError(t, err)
	require.NoError(t, ours.Publisher().Publish("jobs", batch(n)...))
	var old []*message.Message
	for range n {
		old = append(old, receive(t, messages))
	}
	operate(t, db, "TRUNCATE redrive_queue_messages, redrive_queue_leases RESTART IDENTITY")

	require.NoError(t, ours.Publisher().Publish("marks", batch(1)...)) // gets the first row and the first lease
	mark := receive(t, marks)
	theirs, err := other.Subscriber(concurrently(n)).Subscribe(t.Context(), "jobs")
	require.NoError(t, err)
	require.NoError(t, other.Publisher().Publish("jobs", batch(n)...))
	var fresh []*message.Message
	for range n {
		fresh = append(fresh, receive(t, theirs))
	}
	for _, m := range old {
		m.Ack()
	}
	mark.Ack() // settled after them
	await.True(t, func() bool {
		return count(t, db, "SELECT count(*) FROM redrive_queue_messages WHERE id = 1") == 0
	})
	require.Equal(t, n, count(t, db, "SELECT count(*) FROM redrive_queue_messages"), "no handler has settled them")
	for _, m := range fresh {
		m.Ack()
	}
	await.True(t, func() bool { return count(t, db, "SELECT count(*) FROM redrive_queue_messages") == 0 })
}
