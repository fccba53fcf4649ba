package sqlqueue_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// Everything that adds a message to a queue notifies other processes of the delay: a publication, fast publications
// that share a notification, the commit of a transaction, a nack, and a reschedule.
func TestNotify_OfEveryDueMessage(t *testing.T) {
	t.Parallel()
	url := services.SharedPostgres(t).Database(t)
	queue := openQueue(t, with(url, "x-nack-pause=3s"))
	messages, err := queue.Subscriber(concurrently(8)).Subscribe(t.Context(), "jobs")
	require.NoError(t, err)
	db := openDB(t, url)
	id := count(t, db, "SELECT id FROM redrive_queues")
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	_, err = conn.Exec(t.Context(), "LISTEN redrive_queue")
	require.NoError(t, err)
	notified := func(delay time.Duration) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		defer cancel()
		n, err := conn.WaitForNotification(ctx)
		require.NoError(t, err)
		// These are the queue's own, with which it checks that it can listen, and that of the hour, which is sent after 10 ms
		// and may arrive after that of the minute.
		hour := fmt.Sprintf("%d %d", id, time.Hour.Microseconds())
		for strings.HasPrefix(n.Payload, "hear ") || n.Payload == hour {
			n, err = conn.WaitForNotification(ctx)
			require.NoError(t, err)
		}
		require.Equal(t, fmt.Sprintf("%d %d", id, delay.Microseconds()), n.Payload)
	}

	require.NoError(t, queue.Publisher().Publish("jobs", message.NewMessage("first", payload)))
	notified(0)
	for _, delay := range []time.Duration{time.Hour, time.Minute} { // within 10 ms of the first, or of each other
		m := message.NewMessage("later", payload)
		envelope.SetDelay(m, delay)
		require.NoError(t, queue.Publisher().Publish("jobs", m))
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	for told := ""; told != fmt.Sprintf("%d %d", id, time.Minute.Microseconds()); {
		n, err := conn.WaitForNotification(ctx)
		require.NoError(t, err, "there is no notification of the last message of a burst")
		told = n.Payload
	}

	m := receive(t, messages)
	origin, _ := envelope.OriginFrom(m.Context())
	require.NoError(t, queue.Reschedule(t.Context(), *origin, m.Copy(), 2*time.Second))
	notified(2 * time.Second)
	m.Ack()
	require.NoError(t, queue.Reschedule(t.Context(), envelope.Origin{Topic: "jobs", Consumer: brokers.DefaultGroup},
		message.NewMessage("another", nil), 0))
	notified(0)
	receive(t, messages).Nack()
	notified(3 * time.Second)

	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	m = message.NewMessage("in tx", payload)
	envelope.SetDelay(m, 4*time.Second)
	require.NoError(t, queue.TxPublisher(tx).Publish("jobs", m))
	require.NoError(t, tx.Commit())
	notified(4 * time.Second)
}

// A notification wakes a consumer that was idle for so long that it would poll a second later: it gets the message as
// fast as a busy one. A busy machine may be late in one round, and a queue that is not woken may be on time by chance,
// so the median counts.
func TestNotify_WakesAConsumerThatDoesNotPoll(t *testing.T) {
	t.Parallel()
	url := services.SharedPostgres(t).Database(t)
	consumer, producer := openQueue(t, with(url, "x-poll=1h")), openQueue(t, with(url, "x-poll=1h"))
	messages, err := consumer.Subscriber().Subscribe(t.Context(), "jobs")
	require.NoError(t, err)
	deliver := func() time.Duration {
		began := time.Now()
		require.NoError(t, producer.Publisher().Publish("jobs", message.NewMessage("m", payload)))
		receive(t, messages).Ack()
		return time.Since(began)
	}
	deliver()
	const rounds = 5
	var longer []time.Duration
	for range rounds {
		<-time.After(1100 * time.Millisecond) // real time: it polls after 2, 4, 8 ... 512 ms, and then after 1024
		idle, awake := deliver(), deliver()
		longer = append(longer, idle-awake)
	}
	slices.Sort(longer)
	require.Less(t, longer[rounds/2], 500*time.Millisecond, "%s", longer)
}

// With rare polling, messages arrive from other processes and from transactions.
func TestNotify_WakesIdleConsumers(t *testing.T) {
	t.Parallel()
	url := services.SharedPostgres(t).Database(t)
	consumer, producer := openQueue(t, with(url, "x-poll=1h")), openQueue(t, with(url, "x-poll=1h"))
	messages, err := consumer.Subscriber().Subscribe(t.Context(), "jobs")
	require.NoError(t, err)
	require.NoError(t, producer.Publisher().Publish("jobs", message.NewMessage("first", payload)))
	receive(t, messages).Ack() // by now it listens, or found this one when it started

	for _, delay := range []time.Duration{0, 300 * time.Millisecond} {
		m := message.NewMessage("m", payload)
		envelope.SetDelay(m, delay)
		require.NoError(t, producer.Publisher().Publish("jobs", m))
		receive(t, messages).Ack()
	}
	db := openDB(t, url)
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, producer.TxPublisher(tx).Publish("jobs", message.NewMessage("in tx", payload)))
	require.NoError(t, tx.Commit())
	receive(t, messages).Ack()
}

// A message without a notification, here one that was inserted into the table manually, is found by polling.
func TestNotify_LostOnesAreFoundByPolling(t *testing.T) {
	t.Parallel()
	url := services.SharedPostgres(t).Database(t)
	queue, db := openQueue(t, url), openDB(t, url)
	messages, err := queue.Subscriber().Subscribe(t.Context(), "jobs")
	require.NoError(t, err)
	require.NoError(t, queue.Publisher().Publish("jobs", message.NewMessage("told", payload)))
	receive(t, messages).Ack()
	for round := range 3 {
		<-time.After(time.Duration(round) * time.Second) // real time: idle consumers poll less often
		_, err = db.ExecContext(t.Context(), `INSERT INTO redrive_queue_messages (queue_id, visible_at, due_at, published_at, uuid, headers, payload)
			SELECT id, 0, 0, 0, 'untold', '{}', '' FROM redrive_queues`)
		require.NoError(t, err)
		m := receive(t, messages)
		require.Equal(t, "untold", m.UUID)
		m.Ack()
	}
}
