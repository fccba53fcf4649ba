package sqlqueue_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
)

// Only acked messages are archived, for the configured time and no longer, whether they were acked inside or outside a
// transaction.
func TestRetention_KeepsAckedMessagesForTheConfiguredTime(t *testing.T) {
	inVirtualTime(t, func(w world) {
		b := w.process("x-retention=1h&x-poll=10s")
		messages := subscribe(w.T, b, "orders", brokers.WithConcurrency(4))
		publish(w.T, b, "orders", "acked", "in a transaction", "rolled back", "nacked")
		for range 4 {
			m := now(w.T, messages)
			switch m.UUID {
			case "acked":
				m.Ack()
			case "in a transaction":
				require.NoError(w, sqlqueue.InTx(m.Context(), func(*sql.Tx) error { return nil }))
				m.Ack()
			case "rolled back":
				require.Error(w, sqlqueue.InTx(m.Context(), func(*sql.Tx) error { return sql.ErrNoRows }))
			case "nacked":
				m.Nack()
			}
		}
		const archived = "SELECT count(*) FROM redrive_queue_archive WHERE uuid IN ('acked', 'in a transaction') AND " +
			"payload = CAST(uuid AS BLOB)"
		require.Equal(w, 2, w.count(archived))
		w.sleep(time.Hour - time.Second)
		require.Equal(w, 2, w.count(archived))
		require.Equal(w, 2, w.count("SELECT count(*) FROM redrive_queue_archive"))
		w.sleep(time.Minute + 2*time.Second) // it runs once a minute
		require.Zero(w, w.count("SELECT count(*) FROM redrive_queue_archive"))
		require.Equal(w, 2, w.count("SELECT count(*) FROM redrive_queue_messages"), "unacked messages are still in the queue")
	})
}

// If the archive cannot be written, the message stays in the queue: it is not acked without the requested copy.
func TestRetention_CopyAndAckAreOneTransaction(t *testing.T) {
	inVirtualTime(t, func(w world) {
		b := w.process("x-retention=1h&x-poll=10s")
		messages := subscribe(w.T, b, "orders")
		publish(w.T, b, "orders", "m")
		m := now(w.T, messages)
		w.exec("CREATE TRIGGER refuse BEFORE DELETE ON redrive_queue_messages BEGIN SELECT RAISE(ABORT, 'refused by the " +
			"test'); END")
		m.Ack()
		w.sleep(time.Minute)
		require.Equal(w, 1, w.count("SELECT count(*) FROM redrive_queue_messages"))
		require.Zero(w, w.count("SELECT count(*) FROM redrive_queue_archive"), "a copy of an unacked message")
		w.exec("DROP TRIGGER refuse")
		w.sleep(2 * time.Second)
		require.Zero(w, w.count("SELECT count(*) FROM redrive_queue_messages"))
		require.Equal(w, 1, w.count("SELECT count(*) FROM redrive_queue_archive"))
	})
}
