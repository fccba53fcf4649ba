package sqlqueue_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/services"
	processed "github.com/redrive-go/redrive/middleware/idempotency/sqlstore"
)

// With pgbouncer in transaction mode, prepared statements collide with those of other clients, session locks are never
// released, and LISTEN succeeds but receives nothing. Two processes still work, and each gets the other's messages.
func TestPgBouncer_TransactionMode(t *testing.T) {
	t.Parallel()
	server := services.SharedPostgres(t)
	url := services.PgBouncer(t, server).Through(server.Database(t))
	a, b := openQueue(t, url), openQueue(t, url)
	messages, err := a.Subscriber(concurrently(4)).Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	for round := range 3 {
		const n = 50
		for i := range n {
			require.NoError(t, b.Publisher().Publish("orders", message.NewMessage(fmt.Sprint(round, "-", i), payload)))
		}
		for range n {
			receive(t, messages).Ack()
		}
	}
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("idle", payload)))
	m := receive(t, messages) // it polls, because it does not receive its own notification
	require.NoError(t, sqlqueue.InTx(m.Context(), func(*sql.Tx) error { return nil }))
	m.Ack()
	origin, ok := envelope.OriginFrom(m.Context())
	require.True(t, ok)
	require.NoError(t, a.Reschedule(t.Context(), *origin, message.NewMessage("again", payload), 100*time.Millisecond))
	receive(t, messages).Ack()
}

// An application's pool that is not configured for pgbouncer gets an error with the necessary DSN parameters.
func TestPgBouncer_Advice(t *testing.T) {
	t.Parallel()
	server := services.SharedPostgres(t)
	url := services.PgBouncer(t, server).Through(server.Database(t))
	var advised [2]bool // the queue, the guard's store
	for i := range 20 { // until two connections share a session
		db := openDB(t, url)
		b, err := sqlqueue.New(t.Context(), db, sqlqueue.PostgreSQL)
		if err == nil {
			t.Cleanup(func() { _ = b.Close() })
			_ = b.Publisher().Publish(fmt.Sprint("t", i), message.NewMessage("1", payload))
		}
		_, guarded := processed.New(t.Context(), db, processed.PostgreSQL)
		for who, err := range []error{err, guarded} {
			if err != nil {
				require.ErrorContains(t, err, "default_query_exec_mode=cache_describe")
				advised[who] = true
			}
		}
		if advised == [2]bool{true, true} {
			return
		}
	}
	t.Fatal("no statements collided")
}
