package sqlqueue_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/envelope"
)

func subscribe(t *testing.T, b brokers.Broker, topic string, opts ...brokers.SubscriberOption) <-chan *message.Message {
	t.Helper()
	messages, err := b.Subscriber(opts...).Subscribe(t.Context(), topic)
	require.NoError(t, err)
	return messages
}

func receive(t *testing.T, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m := <-messages:
		require.NotNil(t, m, "the subscription has ended")
		return m
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "no message was delivered")
		return nil
	}
}

func nothing(t *testing.T, messages <-chan *message.Message, quiet time.Duration) {
	t.Helper()
	select {
	case m := <-messages:
		require.Failf(t, "a message was delivered", "%s", m.UUID)
	case <-time.After(quiet): // the absence of a delivery takes time to observe
	}
}

// openFile opens a queue on the application's own *sql.DB.
func openFile(t *testing.T, opts ...brokers.Option) (*sqlqueue.Broker, *sql.DB) {
	t.Helper()
	return openBusy(t, 10*time.Second, opts...)
}

// openBusy is openFile with another busy_timeout. SQLite waits for that in real time.
func openBusy(t *testing.T, timeout time.Duration, opts ...brokers.Option) (*sqlqueue.Broker, *sql.DB) {
	t.Helper()
	dsn := fmt.Sprintf("file:%s?_pragma=busy_timeout(%d)&_pragma=journal_mode(WAL)&_txlock=immediate",
		filepath.Join(t.TempDir(), "app.db"), timeout.Milliseconds())
	db, err := sql.Open("sqlite", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	b, err := sqlqueue.New(t.Context(), db, sqlqueue.SQLite, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b, db
}

func rows(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

// SQLite's writers do not queue: among many, one may have no turn within busy_timeout, ten seconds. Its
// publication, retry or transaction failed, even if the publish timeout was longer.
func TestWrites_WaitForOtherWriters(t *testing.T) {
	for name, write := range map[string]func(*testing.T, *sqlqueue.Broker, *message.Message) error{
		"Publish": func(_ *testing.T, b *sqlqueue.Broker, _ *message.Message) error {
			return b.Publisher().Publish("orders", message.NewMessage("2", nil))
		},
		"Reschedule": func(t *testing.T, b *sqlqueue.Broker, m *message.Message) error {
			t.Helper()
			return b.Reschedule(t.Context(), origin(t, m), m.Copy(), 0)
		},
		"Subscribe": func(t *testing.T, b *sqlqueue.Broker, _ *message.Message) error {
			t.Helper()
			_, err := b.Subscriber(brokers.WithGroup("other")).Subscribe(t.Context(), "orders")
			return err
		},
		"InTx": func(_ *testing.T, _ *sqlqueue.Broker, m *message.Message) error {
			return sqlqueue.InTx(m.Context(), func(*sql.Tx) error { return nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, db := openBusy(t, 0)
				messages := subscribe(t, b, "orders")
				publish(t, b, "orders", "1")
				m := receive(t, messages)
				conn, err := db.Conn(t.Context())
				require.NoError(t, err)
				exec := func(statement string) {
					_, err := conn.ExecContext(t.Context(), statement)
					require.NoError(t, err)
				}
				exec("BEGIN IMMEDIATE")
				written := make(chan error, 1)
				go func() { written <- write(t, b, m) }()
				time.Sleep(5 * time.Second) // virtual
				synctest.Wait()
				exec("ROLLBACK")
				require.NoError(t, <-written)
				require.NoError(t, conn.Close())
			})
		})
	}
}

// The first group of a topic also receives earlier messages; later groups receive only those published after they
// subscribed.
func TestGroups_FirstReceivesEarlierMessages(t *testing.T) {
	b := openURL(t, fileURL(t, ""))
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("before", nil)))
	billing := subscribe(t, b, "orders", brokers.WithGroup("billing"))
	m := receive(t, billing)
	require.Equal(t, "before", m.UUID)
	m.Ack()

	mail := subscribe(t, b, "orders", brokers.WithGroup("mail"))
	nothing(t, mail, 200*time.Millisecond)
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("after", nil)))
	for _, messages := range []<-chan *message.Message{mail, billing} {
		m := receive(t, messages)
		require.Equal(t, "after", m.UUID)
		m.Ack()
	}
}

// UUIDs and headers of any bytes are preserved.
func TestMessage_AnyBytesSurvive(t *testing.T) {
	b := openURL(t, fileURL(t, ""))
	messages := subscribe(t, b, "orders", brokers.WithConcurrency(8))
	for _, uuid := range []string{"", "plain", "nul\x00", "\xff\xfe", strings.Repeat("u", 300), "ünï"} {
		want := message.NewMessage(uuid, []byte("\x00\xff{"))
		want.Metadata = message.Metadata{"nul": "a\x00b", "raw": "\xff", "": "empty key", "quote": `"\`, "$binary": "x"}
		require.NoError(t, b.Publisher().Publish("orders", want))
		got := receive(t, messages)
		require.Equal(t, uuid, got.UUID)
		require.Equal(t, want.Payload, got.Payload)
		require.Equal(t, want.Metadata, got.Metadata)
		got.Ack()
	}
}

// A rescheduled message remains the same row: a crash between reschedule and ack delivers nothing twice, and its
// position, from which foreign messages get their id, does not change.
func TestReschedule_ChangesTheRowItself(t *testing.T) {
	b, db := openFile(t)
	messages := subscribe(t, b, "orders")
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("1", []byte("a"))))
	m := receive(t, messages)
	origin, ok := envelope.OriginFrom(m.Context())
	require.True(t, ok)

	again := m.Copy()
	again.Metadata.Set("x-retry-count", "1")
	again.Payload = []byte("b")
	require.NoError(t, b.Reschedule(t.Context(), *origin, again, 50*time.Millisecond))
	require.Equal(t, 1, rows(t, db, "SELECT count(*) FROM redrive_queue_messages"))
	m.Nack() // as if the ack was lost and the message released: its outcome is already decided

	retry := receive(t, messages)
	require.Equal(t, "b", string(retry.Payload))
	require.Equal(t, "1", retry.Metadata.Get("x-retry-count"))
	next, _ := envelope.OriginFrom(retry.Context())
	require.Equal(t, origin.Position, next.Position)
	require.Equal(t, 1, next.DeliveryCount)
	retry.Ack()
	require.Eventually(t, func() bool { return rows(t, db, "SELECT count(*) FROM redrive_queue_messages") == 0 },
		2*time.Minute, 5*time.Millisecond)
}

// Rescheduling a message other than the one in flight adds a message.
func TestReschedule_OfAnotherMessageAddsOne(t *testing.T) {
	b := openURL(t, fileURL(t, ""))
	messages := subscribe(t, b, "orders", brokers.WithConcurrency(2))
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("1", nil)))
	m := receive(t, messages)
	origin, _ := envelope.OriginFrom(m.Context())
	require.NoError(t, b.Reschedule(t.Context(), *origin, message.NewMessage("2", nil), 0))
	other := receive(t, messages)
	require.Equal(t, "2", other.UUID)
	other.Ack()
	require.NoError(t, m.Context().Err())
	m.Ack()
}

func TestReschedule_UnknownGroupIsUnroutable(t *testing.T) {
	b := openURL(t, fileURL(t, ""))
	err := b.Reschedule(t.Context(), envelope.Origin{Topic: "orders", Consumer: "typo"}, message.NewMessage("1", nil), 0)
	require.ErrorIs(t, err, brokers.ErrUnroutable)
}

// DeliveryCount grows with each delivery that was not settled, so a crash loop is visible.
func TestDeliveryCount_CountsLeases(t *testing.T) {
	b := openURL(t, fileURL(t, "x-nack-pause=1ms"))
	messages := subscribe(t, b, "orders")
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("1", nil)))
	for n := 1; n <= 3; n++ {
		m := receive(t, messages)
		origin, _ := envelope.OriginFrom(m.Context())
		require.Equal(t, n, origin.DeliveryCount)
		require.Equal(t, n > 1, origin.Redelivered)
		m.Nack()
	}
}

// A damaged row is delivered with everything that can be read, and can be dead-lettered.
func TestDamagedHeaders_AreDelivered(t *testing.T) {
	b, db := openFile(t)
	messages := subscribe(t, b, "orders", brokers.WithConcurrency(2))
	for headers, want := range map[string]message.Metadata{
		`{"a": 1, "b": {"c": []}, "d":null}`: {"a": "1", "b": `{"c": []}`, "d": ""},
		`{"broken`:                           {"x-unreadable-headers": `{"broken`},
		``:                                   {},
		`{"$binary":["!"]}`:                  {"x-unreadable-headers": `{"$binary":["!"]}`},
	} {
		_, err := db.ExecContext(t.Context(), `INSERT INTO redrive_queue_messages
			(queue_id, visible_at, due_at, published_at, uuid, headers, payload)
			SELECT id, 0, 0, 0, 'u', ?, x'7b' FROM redrive_queues`, headers)
		require.NoError(t, err)
		m := receive(t, messages)
		require.Equal(t, want, m.Metadata, headers)
		require.Equal(t, "{", string(m.Payload))
		m.Ack()
	}
}

// A row of another program that is larger than a publication may be still becomes a dead letter.
func TestTooLarge_ForeignRowsAreDeadLettered(t *testing.T) {
	b, db := openFile(t, func(c *brokers.Config) { c.Params = brokers.Params{"max-message": "64KiB"} })
	messages := subscribe(t, b, "orders")
	_, err := db.ExecContext(t.Context(), `INSERT INTO redrive_queue_messages
		(queue_id, visible_at, due_at, published_at, uuid, headers, payload)
		SELECT id, 0, 0, 0, 'u', '{}', zeroblob(200000) FROM redrive_queues`)
	require.NoError(t, err)
	m := receive(t, messages)
	origin, _ := envelope.OriginFrom(m.Context())
	require.NoError(t, b.DeadLetter(t.Context(), &envelope.DeadLetter{Message: m, Origin: *origin}))
	m.Ack()
}

// A state change and its event are in one transaction, and so are a handler's change and its ack.
func TestTransactions(t *testing.T) {
	b, db := openFile(t)
	_, err := db.ExecContext(t.Context(), "CREATE TABLE effects (id TEXT)")
	require.NoError(t, err)
	messages := subscribe(t, b, "orders", brokers.WithConcurrency(2))
	inTx := func(id string, end func(tx *sql.Tx) error) {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "INSERT INTO effects VALUES (?)", id)
		require.NoError(t, err)
		require.NoError(t, b.TxPublisher(tx).Publish("orders", message.NewMessage(id, nil)))
		require.NoError(t, end(tx))
	}
	inTx("rolled back", (*sql.Tx).Rollback)
	inTx("committed", (*sql.Tx).Commit)
	m := receive(t, messages)
	require.Equal(t, "committed", m.UUID)

	boom := errors.New("boom")
	for _, want := range []error{boom, nil} {
		err := sqlqueue.InTx(m.Context(), func(tx *sql.Tx) error {
			_, err := tx.ExecContext(t.Context(), "INSERT INTO effects VALUES ('handled')")
			return errors.Join(err, want)
		})
		require.ErrorIs(t, err, want)
	}
	m.Ack()
	require.Equal(t, 1, rows(t, db, "SELECT count(*) FROM effects WHERE id = 'handled'"))
	require.Equal(t, 1, rows(t, db, "SELECT count(*) FROM effects WHERE id = 'committed'"))
	require.Zero(t, rows(t, db, "SELECT count(*) FROM redrive_queue_messages"))
	require.ErrorIs(t, sqlqueue.InTx(context.Background(), nil), sqlqueue.ErrNoDelivery)
}

// A slow handler leaves the rest of the queue to others: only the message that it handles is leased.
func TestPrefetch_LeavesASlowHandlersBacklogToOthers(t *testing.T) {
	b, db := openFile(t)
	slow := subscribe(t, b, "orders", brokers.WithGroup("workers"))
	for range 20 {
		require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("m", nil)))
	}
	m := receive(t, slow)
	require.Equal(t, 1, rows(t, db, "SELECT count(*) FROM redrive_queue_messages WHERE lease IS NOT NULL"))
	others := subscribe(t, b, "orders", brokers.WithGroup("workers"), brokers.WithConcurrency(19))
	for range 19 {
		receive(t, others).Ack()
	}
	m.Ack()
}

// A row that is being returned may be claimed again before the call that returns it has ended. It used to be treated as
// a row whose lease had expired, and waited until the new lease expired.
func TestReturnedAtOnce_IsRedeliveredAtOnce(t *testing.T) {
	const n, rounds = 200, 4
	b := openURL(t, fileURL(t, "x-lease=10m&x-nack-pause=1ms"))
	messages := subscribe(t, b, "orders", brokers.WithConcurrency(16))
	for range n {
		require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("m", nil)))
	}
	var (
		mu       sync.Mutex
		runs     = map[string]int{}
		handlers sync.WaitGroup
		done     sync.WaitGroup
	)
	done.Add(n)
	for range 16 {
		handlers.Go(func() {
			for m := range messages {
				origin, _ := envelope.OriginFrom(m.Context())
				mu.Lock()
				runs[origin.Position]++
				run := runs[origin.Position]
				mu.Unlock()
				switch {
				case run == rounds:
					m.Ack()
					done.Done()
				case run%2 == 0:
					m.Nack()
				case b.Reschedule(t.Context(), *origin, m.Copy(), 0) == nil:
					m.Ack()
				default:
					m.Nack()
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { done.Wait(); close(finished) }()
	select {
	case <-finished:
	case <-time.After(2 * time.Minute):
		mu.Lock()
		require.FailNow(t, "messages are stuck", "%v", runs)
	}
	require.NoError(t, b.Close())
	handlers.Wait()
	for position, times := range runs {
		require.Equal(t, rounds, times, position)
	}
}

// refuses is the condition of a trigger that refuses to update a message.
var refuses atomic.Pointer[func(uuid string) bool]

func init() {
	sqlite.MustRegisterScalarFunction("refuses", 1,
		func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
			uuid, _ := args[0].(string)
			return (*refuses.Load())(uuid), nil
		})
}

// Retries of several handlers share a transaction. If the database refuses one of them, each is tried separately: those
// that can be stored are, and the messages of the others stay unacked, including one that was part of the transaction
// before it was rolled back.
func TestReschedule_ARefusedOneFailsAlone(t *testing.T) {
	inVirtualTime(t, func(w world) {
		b := w.process("x-poll=1h")
		messages := subscribe(w.T, b, "orders", brokers.WithConcurrency(5))
		publish(w.T, b, "orders", "first", "a", "refused", "b", "c")
		ofA := 0
		hook := func(uuid string) bool {
			if uuid == "a" {
				ofA++
			}
			return uuid == "refused" || uuid == "a" && ofA > 1
		}
		refuses.Store(&hook)
		w.exec(`CREATE TRIGGER refuse BEFORE UPDATE OF headers ON redrive_queue_messages WHEN refuses(NEW.uuid)
			BEGIN SELECT RAISE(ABORT, 'refused by the test'); END`)
		held := map[string]*message.Message{}
		for range 5 {
			m := now(w.T, messages)
			held[m.UUID] = m
		}
		for id, err := range rescheduleTogether(w, b, held, "first", "a", "refused", "b", "c") {
			if id == "refused" || id == "a" {
				require.ErrorContains(w, err, "refused by the test")
				continue
			}
			require.NoError(w, err)
			held[id].Ack()
		}
		require.Equal(w, 2, ofA, "it was not in the same transaction as the refused one, so this test proves nothing")
		require.Equal(w, 3, w.count("SELECT count(*) FROM redrive_queue_messages WHERE lease = 0 AND headers LIKE '%again%'"))
		require.Equal(w, 2, w.count("SELECT count(*) FROM redrive_queue_messages WHERE lease <> 0"))
		held["a"].Ack()
		held["refused"].Ack()
		w.sleep(time.Second)
		require.Equal(w, 3, w.count("SELECT count(*) FROM redrive_queue_messages"))
	})
}

// rescheduleTogether reschedules messages that wait for the first one's write, and returns the results.
func rescheduleTogether(
	w world, b *sqlqueue.Broker, held map[string]*message.Message, ids ...string,
) map[string]error {
	w.Helper()
	release := b.HoldWrites()
	faults := map[string]error{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, id := range ids {
		all.Go(func() {
			retry := held[id].Copy()
			retry.Metadata.Set("again", "yes")
			err := b.Reschedule(held[id].Context(), origin(w.T, held[id]), retry, time.Hour)
			mu.Lock()
			defer mu.Unlock()
			faults[id] = err
		})
		synctest.Wait()
	}
	release()
	all.Wait()
	return faults
}

// A message is stored for every group of its topic, or for none.
func TestPublish_ToEveryGroupOrNone(t *testing.T) {
	for _, refused := range []string{"min", "max"} {
		b, db := openFile(t)
		for _, group := range []string{"one", "two"} {
			subscribe(t, b, "orders", brokers.WithGroup(group))
		}
		b.BreakInserts(t, "queue_id = (SELECT "+refused+"(id) FROM redrive_queues)")
		require.ErrorContains(t, b.Publisher().Publish("orders", message.NewMessage("m", nil)), "refused")
		require.Zero(t, rows(t, db, "SELECT count(*) FROM redrive_queue_messages"))
	}
}

// Several callers that publish share a transaction. If the database refuses one of the messages, only its caller gets
// an error, and no group gets the others' twice.
func TestPublish_ARefusedMessageFailsAlone(t *testing.T) {
	inVirtualTime(t, func(w world) {
		const callers = 32
		b := w.process("")
		var groups []<-chan *message.Message
		for _, group := range []string{"one", "two"} {
			groups = append(groups, subscribe(w.T, b, "orders", brokers.WithGroup(group), brokers.WithConcurrency(callers)))
		}
		b.BreakInserts(w.T, "uuid = 'refused' AND NEW.queue_id = 1")
		release := b.HoldWrites() // the first publish waits for it, and the others wait behind the first
		var (
			mu      sync.Mutex
			refused []string
			all     sync.WaitGroup
		)
		send := func(id string) {
			all.Go(func() {
				if err := b.Publisher().Publish("orders", message.NewMessage(id, nil)); err != nil {
					mu.Lock()
					defer mu.Unlock()
					refused = append(refused, id)
				}
			})
		}
		send("m")
		w.sleep(time.Millisecond)
		for i := range callers - 1 {
			id := "m"
			if i == callers/2 {
				id = "refused"
			}
			send(id)
		}
		w.sleep(time.Millisecond)
		release()
		all.Wait()
		require.Equal(w, []string{"refused"}, refused)
		require.ErrorContains(w, b.Publisher().Publish("orders", message.NewMessage("refused", nil)), "refused",
			"it was alone in its statement")
		for _, messages := range groups {
			for range callers - 1 {
				m := now(w.T, messages)
				require.Equal(w, "m", m.UUID)
				m.Ack()
			}
			none(w.T, messages)
		}
	})
}
