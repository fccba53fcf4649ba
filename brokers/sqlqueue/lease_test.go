package sqlqueue_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/middleware"
)

// takeOver leases every row to another worker, as if that had just claimed them.
const takeOver = `UPDATE redrive_queue_messages SET lease = 42, deliveries = deliveries + 1, started = 1,
	visible_at = (CAST(round(unixepoch('subsec') * 1000) AS INTEGER) + 30000) * 1000`

// The messages of a dead worker are redelivered to others once its lease has expired, and not before.
func TestLease_OfADeadWorkerEnds(t *testing.T) {
	inVirtualTime(t, func(w world) {
		b := w.process("x-poll=3s")
		publish(w.T, b, "orders", "m")
		w.exec(takeOver)
		messages := subscribe(w.T, b, "orders")
		w.sleep(29900 * time.Millisecond)
		none(w.T, messages)
		w.sleep(200 * time.Millisecond)
		m := now(w.T, messages)
		require.Equal(w, 2, origin(w.T, m).DeliveryCount)
		m.Ack()
		require.Zero(w, w.count("SELECT count(*) FROM redrive_queue_messages"))
	})
}

// A lease is renewed for as long as the handler takes, and no other handler starts with the message.
func TestLease_IsRenewed(t *testing.T) {
	inVirtualTime(t, func(w world) {
		slow, other := w.process("x-poll=3s"), w.process("x-poll=3s")
		messages := subscribe(w.T, slow, "orders", brokers.WithConcurrency(3))
		publish(w.T, slow, "orders", "a", "b", "c")
		m := now(w.T, messages)
		now(w.T, messages).Ack()
		now(w.T, messages).Ack()
		others := subscribe(w.T, other, "orders")
		for range 20 {
			w.sleep(9 * time.Second)
			none(w.T, others)
		}
		require.NoError(w, m.Context().Err())
		m.Ack()
		require.Zero(w, w.count("SELECT count(*) FROM redrive_queue_messages"))
	})
}

// If a process is stopped for longer than its lease, another worker takes its message over. Whether or not its handler
// was notified, its outcome then has no effect, inside or outside a transaction, and leaves nothing behind.
func TestLease_LostToAnotherWorker(t *testing.T) {
	for name, end := range map[string]func(w world, b *sqlqueue.Broker, m *message.Message){
		"Ack":  func(_ world, _ *sqlqueue.Broker, m *message.Message) { m.Ack() },
		"Nack": func(_ world, _ *sqlqueue.Broker, m *message.Message) { m.Nack() },
		"Reschedule": func(w world, b *sqlqueue.Broker, m *message.Message) {
			require.ErrorIs(w, b.Reschedule(w.Context(), origin(w.T, m), m.Copy(), 0), sqlqueue.ErrLeaseLost)
			m.Ack()
		},
		"InTx": func(w world, _ *sqlqueue.Broker, m *message.Message) {
			want := sqlqueue.ErrLeaseLost
			if m.Context().Err() != nil {
				want = sqlqueue.ErrNoDelivery // it has been notified
			}
			require.ErrorIs(w, effect(w, m), want)
			m.Ack()
		},
	} {
		for _, told := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, notified=%t", name, told), func(t *testing.T) {
				inVirtualTime(t, func(w world) {
					b := w.process("")
					w.exec("CREATE TABLE effects (id TEXT)")
					messages := subscribe(w.T, b, "orders")
					publish(w.T, b, "orders", "m")
					m := now(w.T, messages)
					w.exec(takeOver)
					if told {
						w.sleep(16 * time.Second) // leases are renewed after a third of their 30 s
						require.ErrorIs(w, context.Cause(m.Context()), sqlqueue.ErrLeaseLost)
					}
					end(w, b, m)
					w.sleep(time.Second)
					require.Equal(w, 1, w.count("SELECT count(*) FROM redrive_queue_messages WHERE lease = 42"),
						"it is the other worker's")
					require.Equal(w, 1, w.count("SELECT count(*) FROM redrive_queue_messages"))
					require.Zero(w, w.count("SELECT count(*) FROM effects"))
				})
			})
		}
	}
}

// A handler finishes after its lease was lost. The ack has no effect on the other worker's row; but if that worker does
// not settle it either, and the message is redelivered to the first process, it is acked and not handled twice.
func TestAck_OfALostLeaseCountsOnRedelivery(t *testing.T) {
	inVirtualTime(t, func(w world) {
		b := w.process("x-poll=3s")
		messages := subscribe(w.T, b, "orders")
		publish(w.T, b, "orders", "m")
		m := now(w.T, messages)
		w.exec(takeOver)
		m.Ack()
		w.sleep(29 * time.Second)
		require.Equal(w, 1, w.count("SELECT count(*) FROM redrive_queue_messages"), "it is the other worker's")
		w.sleep(5 * time.Second)
		none(w.T, messages)
		require.Zero(w, w.count("SELECT count(*) FROM redrive_queue_messages"))
		require.EqualValues(w, 1, b.Replays())
		require.EqualValues(w, 1, b.AcksFailed())
	})
}

// A prefetched row that another worker has taken over by the time a handler is free is not delivered.
func TestLease_LostBeforeTheHandlerBegins(t *testing.T) {
	inVirtualTime(t, func(w world) {
		b := w.process("x-poll=1h")
		messages := subscribe(w.T, b, "orders")
		const n = 100
		for range n {
			publish(w.T, b, "orders", "m")
		}
		for range 50 {
			m := <-messages
			w.sleep(2 * time.Millisecond) // such a fast handler lets the subscription prefetch some 25 messages
			m.Ack()
		}
		m := <-messages
		w.sleep(time.Second)
		ahead := w.count("SELECT count(*) FROM redrive_queue_messages WHERE lease IS NOT NULL AND lease <> 0")
		require.Greater(w, ahead, 5, "nothing was prefetched, so this test proves nothing")
		w.exec("UPDATE redrive_queue_messages SET visible_at = visible_at + 3600000000") // of those that are not leased
		w.exec(takeOver + " WHERE lease IS NOT NULL AND lease <> 0")
		w.sleep(16 * time.Second)
		require.ErrorIs(w, context.Cause(m.Context()), sqlqueue.ErrLeaseLost)
		m.Nack()
		none(w.T, messages)
		require.Equal(w, ahead, w.count("SELECT count(*) FROM redrive_queue_messages WHERE lease = 42"))
	})
}

// effect is a handler's change in the transaction that acks its message.
func effect(w world, m *message.Message) error {
	return sqlqueue.InTx(m.Context(), func(tx *sql.Tx) error {
		_, err := tx.ExecContext(w.Context(), "INSERT INTO effects VALUES ('m')")
		return err
	})
}

// A commit whose answer is lost has happened all the same. It counted as a failed attempt, and the last one made a dead
// letter of a message whose effect was stored. An attempt of which the database cannot say what happened is no failure
// either.
func TestInTx_CommitWithoutAnAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		statement string // of the handler; after "COMMIT" its ack is stored too, and the commit fails
		closed    bool   // nor does the database answer later
		dead      int
		effects   int
		err       string // of InTx
		cause     string // of the end of the handler's context
	}{
		"Stored":    {statement: "COMMIT", effects: 1},
		"NotStored": {statement: "INSERT INTO parts VALUES ('x')", dead: 1, err: "FOREIGN KEY constraint failed"},
		"Unknown":   {statement: "COMMIT", closed: true, effects: 1, err: "commit: ", cause: "database is closed"},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(w world) {
				b := w.process("_pragma=foreign_keys(1)")
				w.exec("CREATE TABLE effects (id TEXT PRIMARY KEY)")
				w.exec("CREATE TABLE parts (of TEXT REFERENCES effects DEFERRABLE INITIALLY DEFERRED)")
				messages := subscribe(w.T, b, "orders")
				publish(w.T, b, "orders", "m")
				pipeline, err := middleware.New(middleware.Config{
					MaxAttempts: 1, DeadLetters: b, Rescheduler: b, Logger: slog.New(slog.DiscardHandler),
				})
				require.NoError(w, err)
				var failed, cause error
				handle := pipeline.Middleware(func(m *message.Message) ([]*message.Message, error) {
					failed = sqlqueue.InTx(m.Context(), func(tx *sql.Tx) error {
						_, err := tx.ExecContext(m.Context(), "INSERT INTO effects VALUES ('m')")
						if err == nil {
							_, err = tx.ExecContext(m.Context(), c.statement)
						}
						if c.closed {
							err = errors.Join(err, b.CloseDB())
						}
						return err
					})
					cause = context.Cause(m.Context())
					return nil, failed
				})
				m := now(w.T, messages)
				if _, err = handle(m); err == nil {
					m.Ack()
				} else {
					m.Nack()
				}
				require.Equal(w, []int{c.dead, c.effects}, []int{
					w.count("SELECT count(*) FROM redrive_queue_messages"), w.count("SELECT count(*) FROM effects"),
				}, "what is left in the queue is the dead letter")
				for i, want := range []string{c.err, c.cause} {
					if got := []error{failed, cause}[i]; want == "" {
						require.NoError(w, got)
					} else {
						require.ErrorContains(w, got, want)
					}
				}
			})
		})
	}
}

// If a database accepts no acks for longer than a lease, they are retried until it does, the lease is renewed
// meanwhile, and no message is handled twice.
func TestAcks_AreRetriedUntilTheyAreStored(t *testing.T) {
	inVirtualTime(t, func(w world) {
		b, other := w.process("x-lease=3s"), w.process("x-lease=3s")
		messages := subscribe(w.T, b, "orders")
		publish(w.T, b, "orders", "m")
		w.exec("CREATE TRIGGER refuse BEFORE DELETE ON redrive_queue_messages BEGIN SELECT RAISE(ABORT, 'refused by the " +
			"test'); END")
		now(w.T, messages).Ack()
		others := subscribe(w.T, other, "orders")
		for range 10 {
			w.sleep(2 * time.Second)
			none(w.T, others)
		}
		w.exec("DROP TRIGGER refuse")
		w.sleep(2 * time.Second)
		require.Zero(w, w.count("SELECT count(*) FROM redrive_queue_messages"))
		none(w.T, others)
	})
}

// Workers that find that another one was faster lease no more rows than they have room for.
func TestClaim_LosersOfRacesHoardNothing(t *testing.T) {
	inVirtualTime(t, func(w world) {
		producer := w.process("")
		var race []func()
		for range 4 {
			worker := w.process("x-prefetch=0")
			subscribe(w.T, worker, "orders", brokers.WithConcurrency(1))
			w.sleep(time.Second) // it has found nothing
			race = append(race, worker.HoldWrites())
		}
		publish(w.T, producer, "orders", "one")
		w.sleep(time.Second) // all have seen it
		for _, start := range race {
			start()
		}
		w.sleep(time.Second)
		publish(w.T, producer, "orders", strings.Split(strings.Repeat("m", 100), "")...)
		w.sleep(time.Second)
		require.Equal(w, 1, w.count("SELECT max(n) FROM (SELECT count(*) AS n FROM redrive_queue_messages WHERE lease > 0 "+
			"GROUP BY lease)"))
	})
}

// Prefetched rows that have not reached a handler are returned at shutdown without counting a delivery.
func TestShutdown_ReturnsUnseenMessages(t *testing.T) {
	inVirtualTime(t, func(w world) {
		first, second := w.process(""), w.process("")
		ctx, cancel := context.WithCancel(w.Context())
		messages, err := first.Subscriber().Subscribe(ctx, "orders")
		require.NoError(w, err)
		const n = 100
		for range n {
			publish(w.T, first, "orders", "m")
		}
		for range 50 {
			m := <-messages
			w.sleep(2 * time.Millisecond) // such a fast handler lets the subscription prefetch some 25 messages
			m.Ack()
		}
		ahead := w.count("SELECT count(*) FROM redrive_queue_messages WHERE lease IS NOT NULL AND lease <> 0")
		require.Greater(w, ahead, 5, "nothing was prefetched, so this test proves nothing")
		cancel()
		w.sleep(time.Second)
		left := w.count("SELECT count(*) FROM redrive_queue_messages")
		require.GreaterOrEqual(w, left, 49)
		others := subscribe(w.T, second, "orders", brokers.WithConcurrency(n))
		for range left {
			m := <-others
			o := origin(w.T, m)
			require.Equal(w, 1, o.DeliveryCount)
			require.False(w, o.Redelivered)
			m.Ack()
		}
	})
}

// A handler that takes longer than the drain is cancelled, and its message is available to others at once, without the
// pause of a nack.
func TestShutdown_DrainEnds(t *testing.T) {
	inVirtualTime(t, func(w world) {
		first, second := w.process("x-drain=5s"), w.process("")
		ctx, cancel := context.WithCancel(w.Context())
		messages, err := first.Subscriber().Subscribe(ctx, "orders")
		require.NoError(w, err)
		publish(w.T, first, "orders", "m")
		m := now(w.T, messages)
		others := subscribe(w.T, second, "orders")
		cancel()
		w.sleep(4900 * time.Millisecond)
		require.NoError(w, m.Context().Err())
		none(w.T, others)
		w.sleep(200 * time.Millisecond)
		require.Error(w, m.Context().Err())
		again := now(w.T, others)
		_, open := <-messages
		require.False(w, open)
		m.Ack() // there is no consumer any more
		again.Ack()
		require.Zero(w, w.count("SELECT count(*) FROM redrive_queue_messages"))
	})
}

// The pause after a nack doubles with each delivery, up to 64 times.
func TestNack_PauseDoubles(t *testing.T) {
	inVirtualTime(t, func(w world) {
		b := w.process("")
		messages := subscribe(w.T, b, "orders")
		publish(w.T, b, "orders", "m")
		var pauses []time.Duration
		(<-messages).Nack()
		for range 9 {
			nacked := time.Now()
			m := <-messages
			pauses = append(pauses, time.Since(nacked).Round(10*time.Millisecond))
			m.Nack()
		}
		ms := time.Millisecond
		require.Equal(w, []time.Duration{
			100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, 6400 * ms,
			6400 * ms,
		}, pauses)
	})
}

// A claim that took longer than the publish timeout, because of large payloads, was repeated with as many, without end.
func TestClaim_LargePayloadsOnASlowNetwork(t *testing.T) {
	inVirtualTime(t, func(w world) {
		b := w.process("x-publish-timeout=10s")
		ids := make([]string, 64)
		for i := range ids {
			ids[i] = strconv.Itoa(i)
		}
		publish(w.T, b, "jobs", ids...)
		b.SlowClaims(time.Second)
		messages := subscribe(w.T, b, "jobs", brokers.WithConcurrency(len(ids)))
		began := time.Now()
		for range ids {
			receive(w.T, messages).Ack()
		}
		require.Less(w, time.Since(began), 4*time.Minute)
	})
}
