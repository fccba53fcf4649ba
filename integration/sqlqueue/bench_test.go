package sqlqueue_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/integration/services"
)

// The benchmarks compare the queue with a hand-written loop and watermill-sql; only the ratios count. A figure named
// x/hand is the queue's rate divided by the loop's, the median of all rounds, which are iterations.
//
//	go test ./sqlqueue -run '^$' -bench . -benchtime 5x

// payload has the size of a small order.
var payload = []byte(`{"order":"` + strings.Repeat("x", 180) + `"}`)

func batch(n int) []*message.Message {
	list := make([]*message.Message, n)
	for i := range list {
		list[i] = message.NewMessage(watermill.NewUUID(), payload)
	}
	return list
}

// handTable is a hand-written queue: one row per message, an index on the due time.
const handTable = `CREATE TABLE hand_queue (id bigserial PRIMARY KEY, due_at timestamptz NOT NULL DEFAULT now(),
	uuid text NOT NULL, headers text NOT NULL, payload bytea NOT NULL);
	CREATE INDEX hand_queue_due ON hand_queue (due_at, id)`

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

// handConsume is the SKIP LOCKED loop in batches of 500, which keeps a transaction open while it processes its rows: it
// has no leases, no retries, and no concurrency. With a router, each row becomes a message and waits for its ack.
func handConsume(tb testing.TB, db *sql.DB, n int, deliver func([]*message.Message)) time.Duration {
	tb.Helper()
	began := time.Now()
	for done := 0; done < n; {
		tx, err := db.BeginTx(tb.Context(), nil)
		require.NoError(tb, err)
		rows, err := tx.QueryContext(tb.Context(), `SELECT id, uuid, headers, payload FROM hand_queue
			WHERE due_at <= now() ORDER BY due_at, id LIMIT 500 FOR UPDATE SKIP LOCKED`)
		require.NoError(tb, err)
		var (
			ids  []int64
			list []*message.Message
		)
		for rows.Next() {
			var (
				id            int64
				uuid, headers string
				payload       []byte
			)
			require.NoError(tb, rows.Scan(&id, &uuid, &headers, &payload))
			ids = append(ids, id)
			if deliver != nil {
				list = append(list, message.NewMessage(uuid, payload))
			}
		}
		require.NoError(tb, errors.Join(rows.Err(), rows.Close())) //nolint:sqlclosecheck // the connection is needed again
		if deliver != nil {
			deliver(list)
		}
		_, err = tx.ExecContext(tb.Context(), "DELETE FROM hand_queue WHERE id = ANY ($1)", ids)
		require.NoError(tb, err)
		require.NoError(tb, tx.Commit())
		done += len(ids)
	}
	return time.Since(began)
}

// channel is a subscriber that delivers the rows of the hand-written loop.
type channel chan *message.Message

func (c channel) Subscribe(context.Context, string) (<-chan *message.Message, error) { return c, nil }
func (c channel) Close() error                                                       { return nil }

// route runs a router on sub with a handler that only counts, and returns when n messages are handled.
func route(tb testing.TB, topic string, n int, subs ...message.Subscriber) time.Duration {
	tb.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	require.NoError(tb, err)
	var left sync.WaitGroup
	left.Add(n)
	for i, sub := range subs {
		router.AddConsumerHandler(fmt.Sprint("bench", i), topic, sub,
			func(*message.Message) error { left.Done(); return nil })
	}
	ctx, cancel := context.WithCancel(tb.Context())
	began := time.Now()
	var running sync.WaitGroup
	running.Go(func() { _ = router.Run(ctx) })
	left.Wait()
	took := time.Since(began)
	cancel()
	running.Wait()
	return took
}

func rate(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }

// arena is a database with our queue and the peers' tables.
type arena struct {
	url   string
	db    *sql.DB
	queue *sqlqueue.Broker
}

func openArena(b *testing.B, server *services.PostgresServer) arena {
	b.Helper()
	url := server.Database(b)
	db := openDB(b, url)
	_, err := db.ExecContext(b.Context(), handTable)
	require.NoError(b, err)
	return arena{url: url, db: db, queue: openQueue(b, url)}
}

// fill stores n due messages in our queue with a subscription, 100,000 per statement.
func (a arena) fill(b *testing.B, topic string, n int, delay time.Duration) {
	b.Helper()
	require.NoError(b, a.queue.Subscriber().(message.SubscribeInitializer).SubscribeInitialize(topic))
	_, err := a.db.ExecContext(b.Context(), `INSERT INTO redrive_queue_messages
		(queue_id, visible_at, due_at, published_at, uuid, headers, payload)
		SELECT q.id, t.us + i, t.us + i, t.us, gen_random_uuid()::text, '{}', $1 FROM generate_series(1, $2::int) i,
		(SELECT id FROM redrive_queues WHERE topic = $3) q,
		(SELECT (extract(epoch FROM now()) * 1000000)::bigint + $4::bigint AS us) t`,
		payload, n, []byte(topic), (delay - time.Minute).Microseconds())
	require.NoError(b, err)
}

func (a arena) vacuum(b *testing.B) {
	b.Helper()
	_, err := a.db.ExecContext(b.Context(), "VACUUM ANALYZE")
	require.NoError(b, err)
}

// rounds has the results of each round of a benchmark: the contenders run alternately, and medians are compared.
type rounds map[string][]float64

func (r rounds) add(name string, perSecond float64) { r[name] = append(r[name], perSecond) }

// ratio returns the median over the rounds of one rate divided by another.
func (r rounds) ratio(a, b string) float64 {
	ratios := make([]float64, len(r[a]))
	for i := range ratios {
		ratios[i] = r[a][i] / r[b][i]
	}
	return median(ratios)
}

func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}

// onBoth runs a benchmark on a server that may lose commits when the power fails, and on one that syncs each commit.
func onBoth(b *testing.B, run func(b *testing.B, open func() arena)) {
	b.Helper()
	for _, durable := range []bool{false, true} {
		b.Run(map[bool]string{false: "fsync=off", true: "fsync=on"}[durable], func(b *testing.B) {
			server := services.Postgres(b, services.PostgresConfig{Durable: durable})
			run(b, func() arena { return openArena(b, server) })
		})
	}
}

// BenchmarkConsume consumes 50,000 messages with a handler that does nothing.
func BenchmarkConsume(b *testing.B) {
	onBoth(b, func(b *testing.B, open func() arena) {
		b.Helper()
		const n = 50_000
		r := rounds{}
		for b.Loop() {
			a := open()
			a.fillHand(b, n)
			r.add("hand", rate(n, handConsume(b, a.db, n, nil)))
			a.fillHand(b, n)
			r.add("hand+router", rate(n, routeHand(b, a.db, n)))
			a.fill(b, "bench", n, 0)
			a.vacuum(b)
			r.add("ours", rate(n, route(b, "bench", n, a.queue.Subscriber(concurrently(64)))))
			r.add("river", rate(n/5, consumeRiver(b, a.url, n/5)))
			r.add("adapted", rate(n/50, consumeAdapted(b, a, n/50)))
			r.add("plain", rate(n/5, consumePlain(b, a, n/5)))
			require.NoError(b, a.queue.Close())
		}
		b.ReportMetric(median(r["ours"]), "ours/s")
		b.ReportMetric(r.ratio("ours", "hand"), "ours/hand")
		b.ReportMetric(r.ratio("ours", "hand+router"), "ours/hand+router")
		b.ReportMetric(r.ratio("ours", "river"), "ours/river")
		b.ReportMetric(r.ratio("ours", "adapted"), "ours/watermill-sql+adapters")
		b.ReportMetric(r.ratio("ours", "plain"), "ours/watermill-sql")
	})
}

func (a arena) fillHand(b *testing.B, n int) {
	b.Helper()
	for range n / 500 {
		handPublish(b, a.db, batch(500))
	}
	a.vacuum(b)
}

// routeHand is the hand-written loop with a router: no queue can be faster through a router, unless it prefetches.
func routeHand(b *testing.B, db *sql.DB, n int) time.Duration {
	b.Helper()
	handed := make(channel)
	var loop sync.WaitGroup
	loop.Go(func() {
		handConsume(b, db, n, func(list []*message.Message) {
			for _, m := range list {
				handed <- m
			}
			for _, m := range list {
				<-m.Acked()
			}
		})
		close(handed)
	})
	defer loop.Wait()
	return route(b, "bench", n, handed)
}

// consumeAdapted runs 16 of watermill-sql's subscribers, with SKIP LOCKED in the adapters.
func consumeAdapted(b *testing.B, a arena, n int) time.Duration {
	b.Helper()
	pub, err := wsql.NewPublisher(a.db, wsql.PublisherConfig{SchemaAdapter: skipLocked{}, AutoInitializeSchema: true},
		watermill.NopLogger{})
	require.NoError(b, err)
	for range n / 500 {
		require.NoError(b, pub.Publish("bench", batch(500)...))
	}
	subs := make([]message.Subscriber, 16)
	for i := range subs {
		subs[i], err = wsql.NewSubscriber(a.db, wsql.SubscriberConfig{
			SchemaAdapter: skipLocked{}, OffsetsAdapter: skipLocked{}, PollInterval: 10 * time.Millisecond,
		}, watermill.NopLogger{})
		require.NoError(b, err)
	}
	return route(b, "bench", n, subs...)
}

// consumePlain runs the unmodified watermill-sql, with bytes as payloads.
func consumePlain(b *testing.B, a arena, n int) time.Duration {
	b.Helper()
	pub, sub := plain(b, a.db, 30*time.Second)
	for range n / 500 {
		require.NoError(b, pub.Publish("bench", batch(500)...))
	}
	return route(b, "bench", n, sub)
}

// BenchmarkBacklog consumes 20,000 messages of a queue in which 10,000 more are due, 1,000,000 more are due, or
// 1,000,000 are delayed.
func BenchmarkBacklog(b *testing.B) {
	const n = 20_000
	server := services.Postgres(b, services.PostgresConfig{})
	r := rounds{}
	for b.Loop() {
		a := openArena(b, server)
		a.fill(b, "small", n+10_000, 0)
		a.fill(b, "large", n+1_000_000, 0)
		a.fill(b, "waiting", n, 0)
		a.fill(b, "waiting", 1_000_000, time.Hour)
		a.vacuum(b)
		r.add("small", rate(n, drain(b, a.queue, "small", n)))
		r.add("large", rate(n, drain(b, a.queue, "large", n)))
		r.add("waiting", rate(n, drain(b, a.queue, "waiting", n)))
		require.NoError(b, a.queue.Close())
		_, err := a.db.ExecContext(b.Context(), "DROP TABLE redrive_queue_messages")
		require.NoError(b, err)
	}
	b.ReportMetric(r.ratio("large", "small"), "1M-due/10k-due")
	b.ReportMetric(r.ratio("waiting", "small"), "behind-1M-waiting/10k-due")
}

// drain consumes n messages from a queue that may have more.
func drain(b *testing.B, queue *sqlqueue.Broker, topic string, n int) time.Duration {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	messages, err := queue.Subscriber(concurrently(64)).Subscribe(ctx, topic)
	require.NoError(b, err)
	began := time.Now()
	for range n {
		(<-messages).Ack()
	}
	took := time.Since(began)
	cancel()
	for m := range messages {
		m.Nack()
	}
	return took
}

// BenchmarkForeignTransaction consumes 100,000 messages while an open transaction keeps every deleted row in the index.
func BenchmarkForeignTransaction(b *testing.B) {
	const n = 100_000
	server := services.Postgres(b, services.PostgresConfig{})
	r := rounds{}
	for b.Loop() {
		a := openArena(b, server)
		a.fill(b, "quiet", n, 0)
		a.fill(b, "held", n, 0)
		a.vacuum(b)
		r.add("quiet", rate(n, drain(b, a.queue, "quiet", n)))
		tx, err := a.db.BeginTx(b.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		require.NoError(b, err)
		_, err = tx.ExecContext(b.Context(), "INSERT INTO hand_queue (uuid, headers, payload) VALUES ('', '', '')")
		require.NoError(b, err)
		r.add("held", rate(n, drain(b, a.queue, "held", n)))
		require.NoError(b, tx.Rollback())
		require.NoError(b, a.queue.Close())
	}
	b.ReportMetric(r.ratio("held", "quiet"), "held/quiet")
}

// BenchmarkPublish publishes one by one, from 32 callers, and in batches of 100.
func BenchmarkPublish(b *testing.B) {
	measure := func(n, workers, size int, publish func(list []*message.Message)) float64 {
		var all sync.WaitGroup
		began := time.Now()
		for range workers {
			all.Go(func() {
				for range n / workers / size {
					publish(batch(size))
				}
			})
		}
		all.Wait()
		return rate(n, time.Since(began))
	}
	onBoth(b, func(b *testing.B, open func() arena) {
		b.Helper()
		a := open()
		require.NoError(b, a.queue.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("bench"))
		ours := func(list []*message.Message) { require.NoError(b, a.queue.Publisher().Publish("bench", list...)) }
		hand := func(list []*message.Message) { handPublish(b, a.db, list) }
		r := rounds{}
		for b.Loop() {
			r.add("one", measure(1000, 1, 1, ours))
			r.add("hand one", measure(1000, 1, 1, hand))
			r.add("callers", measure(6400, 32, 1, ours))
			r.add("hand callers", measure(6400, 32, 1, hand))
			r.add("batch", measure(20_000, 1, 100, ours))
			r.add("hand batch", measure(20_000, 1, 100, hand))
		}
		for name, metric := range map[string]string{"one": "one", "callers": "32-callers", "batch": "batch-of-100"} {
			b.ReportMetric(median(r[name]), metric+"/s")
			b.ReportMetric(r.ratio(name, "hand "+name), metric+"/hand")
		}
	})
}

// BenchmarkLatency is the time from the commit of a publish to its handler, on an idle queue.
func BenchmarkLatency(b *testing.B) {
	onBoth(b, func(b *testing.B, open func() arena) {
		b.Helper()
		a := open()
		messages, err := a.queue.Subscriber().Subscribe(b.Context(), "bench")
		require.NoError(b, err)
		pub := a.queue.Publisher()
		require.NoError(b, pub.Publish("bench", batch(1)...))
		(<-messages).Ack() // by then it listens, or is about to
		var took []time.Duration
		for b.Loop() {
			require.NoError(b, pub.Publish("bench", batch(1)...))
			committed := time.Now()
			m := <-messages
			took = append(took, time.Since(committed))
			m.Ack()
			time.Sleep(20 * time.Millisecond) // real time: the consumer becomes idle again
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
		b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	})
}
