package sqlqueue_test

import (
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/middleware"
)

// A database, a role or a server may make all transactions SERIALIZABLE. With four groups on a topic, no publish is
// refused, and each message is handled by each group.
func TestSerializable_LosesAndRefusesNothing(t *testing.T) {
	t.Parallel()
	for name, level := range map[string]string{
		"PostgreSQL": "default_transaction_isolation=serializable",
		"MariaDB":    "tx_isolation=%27SERIALIZABLE%27",
		"MySQL":      "transaction_isolation=%27SERIALIZABLE%27",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const groups, publishers, each = 4, 4, 100
			queue := openQueue(t, with(servers[name](t), level+"&x-nack-pause=10ms&x-poll=10ms"))
			w := newWork(t, queue)
			for g := range groups {
				w.consume(queue, fmt.Sprint("group-", g))
			}
			w.start(t)
			var producing sync.WaitGroup
			faults := make(chan error, publishers*each)
			for p := range publishers {
				producing.Go(func() {
					for i := range each {
						faults <- queue.Publisher().Publish("jobs", message.NewMessage(fmt.Sprintf("%d-%d", p, i), payload))
					}
				})
			}
			producing.Wait()
			close(faults)
			for err := range faults {
				require.NoError(t, err)
			}
			await.Count(t, groups*publishers*each, w.ended)
			w.stop(t)
			for key := range w.dead {
				require.True(t, strings.HasSuffix(key, poison), key)
			}
		})
	}
}

// work are consumers whose messages fail in different ways, and what happened to each.
type work struct {
	router  *message.Router
	running <-chan error

	mu            sync.Mutex
	seen          map[string]int
	handled, dead map[string]bool // by group and id
}

// Suffixes of ids: the message fails once, is permanently wrong, or has its effect in the database.
const (
	shaky  = "1"
	poison = "2"
	inTx   = "3"
)

func newWork(t *testing.T, queue *sqlqueue.Broker) *work {
	t.Helper()
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: queue, DeadLetters: queue, Logger: slog.New(slog.DiscardHandler),
		Backoff: middleware.Constant(10 * time.Millisecond),
	})
	require.NoError(t, err)
	w := &work{seen: map[string]int{}, handled: map[string]bool{}, dead: map[string]bool{}}
	w.router, err = message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	w.router.AddMiddleware(pipeline.Middleware)
	return w
}

// consume adds a group with its dead letters.
func (w *work) consume(queue *sqlqueue.Broker, group string) {
	w.router.AddConsumerHandler(group, "jobs", queue.Subscriber(inGroup(group), concurrently(8)),
		func(m *message.Message) error {
			err := w.handle(m, group+"/"+m.UUID)
			if err == nil {
				w.end(w.handled, group+"/"+m.UUID)
			}
			return err
		})
	w.router.AddConsumerHandler(group+" dead", "jobs."+group+"_dlq", queue.Subscriber(inGroup("dead")),
		func(m *message.Message) error {
			w.end(w.dead, group+"/"+m.UUID)
			return nil
		})
}

func (w *work) handle(m *message.Message, key string) error {
	w.mu.Lock()
	w.seen[key]++
	first := w.seen[key] == 1
	w.mu.Unlock()
	switch {
	case strings.HasSuffix(key, shaky) && first:
		return errors.New("not yet")
	case strings.HasSuffix(key, poison):
		return middleware.Permanent(errors.New("never"))
	case strings.HasSuffix(key, inTx):
		return sqlqueue.InTx(m.Context(), func(*sql.Tx) error { return nil })
	}
	return nil
}

func (w *work) end(list map[string]bool, key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	list[key] = true
}

// ended is how many messages are handled or dead, each once for a group.
func (w *work) ended() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.handled) + len(w.dead)
}

// has reports whether a message is handled or dead.
func (w *work) has(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.handled[key] || w.dead[key]
}

func (w *work) start(t *testing.T) {
	t.Helper()
	w.running = await.Run(t.Context(), t, w.router)
}

func (w *work) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, w.router.Close())
	require.NoError(t, <-w.running)
}
