package sqlqueue_test

import (
	"database/sql"
	"database/sql/driver"
	"log/slog"
	"path/filepath"
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

// SQLite gets the time from Go, so in a testing/synctest bubble a queue and its database run in virtual time.
func init() {
	sqlite.MustRegisterScalarFunction("unixepoch", 1, func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
		return float64(time.Now().UnixMilli()) / 1000, nil
	})
}

// world is a database file in virtual time, the test's own connection to it, and the processes that share it.
type world struct {
	*testing.T
	path string
	db   *sql.DB
}

// inVirtualTime runs test in a bubble.
func inVirtualTime(t *testing.T, test func(w world)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "queue.db")
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)&_txlock=immediate")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		test(world{T: t, path: path, db: db})
	})
}

// process opens the queue as another process.
func (w world) process(params string) *sqlqueue.Broker {
	w.Helper()
	b, err := brokers.Open(w.Context(), "sqlite://"+w.path+"?_pragma=synchronous(off)&"+params,
		brokers.WithConfig(func(c *brokers.Config) {
			c.Logger = slog.New(slog.DiscardHandler)
		}))
	require.NoError(w, err)
	w.Cleanup(func() { require.NoError(w, b.Close()) })
	queue, ok := b.(*sqlqueue.Broker)
	require.True(w, ok)
	return queue
}

// exec changes the database on a separate connection.
func (w world) exec(query string, args ...any) {
	w.Helper()
	_, err := w.db.ExecContext(w.Context(), query, args...)
	require.NoError(w, err)
}

// count runs a query that returns one number, once everything is idle.
func (w world) count(query string) int {
	w.Helper()
	synctest.Wait()
	return rows(w.T, w.db, query)
}

// sleep lets virtual time pass and waits until due events have happened.
func (w world) sleep(d time.Duration) {
	time.Sleep(d) // virtual
	synctest.Wait()
}

func publish(t *testing.T, b *sqlqueue.Broker, topic string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		require.NoError(t, b.Publisher().Publish(topic, message.NewMessage(id, []byte(id))))
	}
}

// none requires that nothing has been delivered.
func none(t *testing.T, messages <-chan *message.Message) {
	t.Helper()
	synctest.Wait()
	select {
	case m := <-messages:
		require.Failf(t, "a message was delivered", "%s", m.UUID)
	default:
	}
}

// now waits until everything is idle, and returns the delivered message.
func now(t *testing.T, messages <-chan *message.Message) *message.Message {
	t.Helper()
	synctest.Wait()
	select {
	case m := <-messages:
		require.NotNil(t, m, "the subscription has ended")
		return m
	default:
		require.FailNow(t, "no message was delivered")
		return nil
	}
}

func origin(t *testing.T, m *message.Message) envelope.Origin {
	t.Helper()
	o, ok := envelope.OriginFrom(m.Context())
	require.True(t, ok)
	return *o
}

// Messages of another process, with and without a delay, are found by polling: never early, and within 100 ms of their
// due time, however long the queue was idle before. Statements take no virtual time, so 20 ms are reserved for them.
func TestPolling_IsExactTo100ms(t *testing.T) {
	inVirtualTime(t, func(w world) {
		producer, consumer := w.process(""), w.process("")
		messages := subscribe(w.T, consumer, "orders", brokers.WithConcurrency(4))
		for i := range 60 {
			w.sleep(time.Duration(37*i) * time.Millisecond)
			m := message.NewMessage("m", nil)
			delay := []time.Duration{0, 30 * time.Millisecond, 130 * time.Millisecond, 3 * time.Second}[i%4]
			envelope.SetDelay(m, delay)
			due := time.Now().Add(delay)
			require.NoError(w, producer.Publisher().Publish("orders", m))
			got := <-messages
			late := time.Since(due)
			require.GreaterOrEqual(w, late, time.Duration(0), "early")
			require.LessOrEqual(w, late, 80*time.Millisecond, "message %d, with a delay of %s", i, delay)
			got.Ack()
		}
	})
}

// A message may arrive later than a waiting one and be due before it.
func TestPolling_AShortDelayBehindALongOne(t *testing.T) {
	inVirtualTime(t, func(w world) {
		producer, consumer := w.process(""), w.process("")
		messages := subscribe(w.T, consumer, "orders")
		began := time.Now()
		for id, delay := range map[string]time.Duration{"long": time.Minute, "short": time.Second} {
			m := message.NewMessage(id, nil)
			envelope.SetDelay(m, delay)
			require.NoError(w, producer.Publisher().Publish("orders", m))
			w.sleep(200 * time.Millisecond)
		}
		for _, want := range []struct {
			id     string
			within time.Duration
		}{{"short", 1500 * time.Millisecond}, {"long", time.Minute + 500*time.Millisecond}} {
			m := <-messages
			require.Equal(w, want.id, m.UUID)
			require.LessOrEqual(w, time.Since(began), want.within)
			m.Ack()
		}
	})
}
