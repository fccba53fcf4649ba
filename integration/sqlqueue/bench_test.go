package sqlqueue_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/integration/services"
)

// payload is of the size of a small order.
var payload = []byte(`{"order":"` + strings.Repeat("x", 180) + `"}`)

func batch(n int) []*message.Message {
	list := make([]*message.Message, n)
	for i := range list {
		list[i] = message.NewMessage(watermill.NewUUID(), payload)
	}
	return list
}

// handTable is what one writes by hand for a queue: one row per message, an index on the due time.
const handTable = `CREATE TABLE IF NOT EXISTS hand_queue (id bigserial PRIMARY KEY, due_at timestamptz NOT NULL DEFAULT now(),
	uuid text NOT NULL, headers text NOT NULL, payload bytea NOT NULL);
	CREATE INDEX IF NOT EXISTS hand_queue_due ON hand_queue (due_at, id)`

func handPublish(tb testing.TB, db *sql.DB, list []*message.Message) {
	tb.Helper()
	var query strings.Builder
	query.WriteString("INSERT INTO hand_queue (uuid, headers, payload) VALUES ")
	args := make([]any, 0, 3*len(list))
	for i, m := range list {
		if i > 0 {
			query.WriteByte(',')
		}
		fmt.Fprintf(&query, "($%d,$%d,$%d)", 3*i+1, 3*i+2, 3*i+3)
		args = append(args, m.UUID, "{}", []byte(m.Payload))
	}
	_, err := db.ExecContext(tb.Context(), query.String(), args...)
	require.NoError(tb, err)
}

// handConsume is the loop that holds its rows in a transaction while it works: no lease, no other worker's turn.
func handConsume(tb testing.TB, db *sql.DB, n int) {
	tb.Helper()
	for done := 0; done < n; {
		tx, err := db.BeginTx(tb.Context(), nil)
		require.NoError(tb, err)
		rows, err := tx.QueryContext(tb.Context(), `SELECT id, uuid, headers, payload FROM hand_queue
			WHERE due_at <= now() ORDER BY due_at, id LIMIT 500 FOR UPDATE SKIP LOCKED`)
		require.NoError(tb, err)
		var ids []int64
		for rows.Next() {
			var (
				id            int64
				uuid, headers string
				payload       []byte
			)
			require.NoError(tb, rows.Scan(&id, &uuid, &headers, &payload))
			ids = append(ids, id)
			done++
		}
		require.NoError(tb, rows.Err())
		_, err = tx.ExecContext(tb.Context(), "DELETE FROM hand_queue WHERE id = ANY ($1)", ids)
		require.NoError(tb, err)
		require.NoError(tb, tx.Commit())
	}
}

// consume runs a router on sub until n messages are handled.
func consume(tb testing.TB, sub message.Subscriber, topic string, n int) time.Duration {
	tb.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	require.NoError(tb, err)
	var left sync.WaitGroup
	left.Add(n)
	router.AddNoPublisherHandler("bench", topic, sub, func(*message.Message) error { left.Done(); return nil })
	ctx, cancel := context.WithCancel(tb.Context())
	began := time.Now()
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = router.Run(ctx) }()
	left.Wait()
	took := time.Since(began)
	cancel()
	<-stopped
	return took
}

func rate(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }

// BenchmarkConsume compares the router on our queue with a hand-written loop, in one run.
func BenchmarkConsume(b *testing.B) {
	const n = 100_000
	server := services.SharedPostgres(b)
	for b.Loop() {
		url := server.Database(b)
		db := openDB(b, url)
		_, err := db.ExecContext(b.Context(), handTable)
		require.NoError(b, err)
		queue, err := sqlqueue.New(b.Context(), db, sqlqueue.PostgreSQL)
		require.NoError(b, err)
		sub := queue.Subscriber(brokers.WithConcurrency(128))
		require.NoError(b, sub.(message.SubscribeInitializer).SubscribeInitialize("bench"))
		pub := queue.Publisher()
		var ours, hand time.Duration
		for i := 0; i < n; i += 500 {
			list := batch(500)
			began := time.Now()
			handPublish(b, db, list)
			hand += time.Since(began)
			began = time.Now()
			require.NoError(b, pub.Publish("bench", list...))
			ours += time.Since(began)
		}
		b.ReportMetric(rate(n, hand), "publish-hand/s")
		b.ReportMetric(hand.Seconds()/ours.Seconds(), "publish-ratio")
		_, err = db.ExecContext(b.Context(), "VACUUM ANALYZE")
		require.NoError(b, err)
		began := time.Now()
		handConsume(b, db, n)
		hand = time.Since(began)
		ours = consume(b, sub, "bench", n)
		b.ReportMetric(rate(n, hand), "consume-hand/s")
		b.ReportMetric(rate(n, ours), "consume-ours/s")
		b.ReportMetric(hand.Seconds()/ours.Seconds(), "consume-ratio")
		require.NoError(b, queue.Close())
	}
	_ = wsql.DefaultPostgreSQLSchema{}
}
