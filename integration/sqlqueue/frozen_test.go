package sqlqueue_test

import (
	"bytes"
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// A worker hangs while it claims, as a suspended machine does or one behind a broken network: on PostgreSQL while the
// server sends it rows, elsewhere between two statements. Others get its messages within a minute, not when the server
// ends the connection, after a quarter of an hour or never.
func TestFrozenWorker_InAClaim(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		const n = 490 // of a claim at most
		proxy, db := services.NewProxy(t, url), openDB(t, url)
		healthy, frozen := openQueue(t, url), openQueue(t, with(proxy.URL(t, url), "x-publish-timeout=1h"))
		t.Cleanup(func() { require.NoError(t, proxy.Cut()) })
		_, err := frozen.Subscriber(concurrently(n)).Subscribe(t.Context(), "jobs")
		require.NoError(t, err)
		list := batch(n)
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback() })
		var claims func() bool
		freeze := proxy.Freeze
		if strings.HasPrefix(url, "postgres:") {
			_, err = tx.ExecContext(t.Context(), "SELECT pg_advisory_xact_lock(1919246962, id::integer) FROM redrive_queues")
			require.NoError(t, err)
			for _, m := range list { // more than the sockets and the proxy take in
				m.Payload = bytes.Repeat([]byte("x"), 128<<10)
			}
			freeze = func() error { return proxy.Delay(time.Hour) } // reads nothing more
			claims = func() bool {
				return count(t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "+
					"wait_event = 'advisory'") > 0
			}
		} else {
			require.NoError(t, proxy.Delay(300*time.Millisecond))
			claims = func() bool {
				_, err := db.ExecContext(t.Context(), "SELECT id FROM redrive_queue_messages WHERE id = 1 FOR UPDATE NOWAIT")
				return err != nil
			}
		}
		require.NoError(t, healthy.Publisher().Publish("jobs", list...))
		await.True(t, claims)
		require.NoError(t, freeze())
		require.NoError(t, tx.Rollback())

		messages, err := healthy.Subscriber(concurrently(n)).Subscribe(t.Context(), "jobs")
		require.NoError(t, err)
		for range n {
			receive(t, messages).Ack()
		}
	})
}

// Handlers that keep all connections for their transactions used to keep the renewal of their leases from any: other
// workers ran them too, again and again, and took the messages for ones that kill workers.
func TestInTx_LeavesConnectionsToLeases(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, url string) {
		t.Helper()
		const n = 2
		queue, db := openQueue(t, with(url, "x-max-connections=2&"+longLease)), openDB(t, url)
		messages, err := queue.Subscriber(concurrently(n)).Subscribe(t.Context(), "jobs")
		require.NoError(t, err)
		require.NoError(t, queue.Publisher().Publish("jobs", batch(n)...))
		begun, end, acked := make(chan struct{}), make(chan struct{}), make(chan error, n)
		for range n {
			m := receive(t, messages)
			go func() {
				acked <- sqlqueue.InTx(m.Context(), func(*sql.Tx) error { begun <- struct{}{}; <-end; return nil })
				m.Ack()
			}()
			<-begun
		}
		const lease = "SELECT min(visible_at) FROM redrive_queue_messages"
		was := count(t, db, lease)
		await.True(t, func() bool { return count(t, db, lease) > was }, "the leases are renewed")
		close(end)
		for range n {
			require.NoError(t, <-acked)
		}
	})
}
