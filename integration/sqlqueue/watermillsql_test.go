package sqlqueue_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// plain opens watermill-sql's own publisher and subscriber. Payloads are bytes, because its default, JSON, refuses
// exactly the messages that fail.
func plain(t testing.TB, db *sql.DB, deadline time.Duration) (*wsql.Publisher, *wsql.Subscriber) {
	t.Helper()
	schema := wsql.DefaultPostgreSQLSchema{GeneratePayloadType: func(string) string { return "BYTEA" }}
	pub, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: schema, AutoInitializeSchema: true},
		watermill.NopLogger{})
	require.NoError(t, err)
	sub, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
		SchemaAdapter:    schema,
		OffsetsAdapter:   wsql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true,
		PollInterval:     10 * time.Millisecond,
		ResendInterval:   10 * time.Millisecond,
		AckDeadline:      &deadline,
	}, watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(sub.Close(), pub.Close())) })
	return pub, sub
}

// Plain watermill-sql topics work with the pipeline: retries wait in our queue and return to the same handler, and dead
// letters are stored. The limits of watermill-sql remain: one handler at a time per group and topic, a handler must be
// faster than AckDeadline, an open transaction stops deliveries, and nothing is ever deleted.
func TestWatermillSQL_TopicsWorkWithThePipeline(t *testing.T) {
	t.Parallel()
	url := services.SharedPostgres(t).Database(t)
	db := openDB(t, url)
	pub, sub := plain(t, db, 30*time.Second)
	queue := openQueue(t, url)
	pipeline, err := middleware.New(middleware.Config{
		DeadLetters: queue,
		Rescheduler: rescheduler(func(ctx context.Context, origin envelope.Origin, m *message.Message,
			delay time.Duration,
		) error {
			// watermill-sql sets no origin, and has no delays, so retries get a topic in our queue.
			origin.Topic, origin.Consumer = "orders_retry", "billing"
			return queue.Reschedule(ctx, origin, m, delay)
		}),
		MaxAttempts: middleware.Tries(3), Backoff: middleware.Constant(50 * time.Millisecond),
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)

	var (
		mu   sync.Mutex
		runs = map[string][]time.Time{}
	)
	handle := func(m *message.Message) error {
		mu.Lock()
		defer mu.Unlock()
		runs[m.UUID] = append(runs[m.UUID], time.Now())
		if m.UUID == "good" || m.UUID == "second" && len(runs[m.UUID]) == 2 {
			return nil
		}
		return errors.New("the payment service is down")
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("orders", "orders", sub, handle)
	router.AddConsumerHandler("orders-retry", "orders_retry", queue.Subscriber(inGroup("billing")), handle)
	ctx, cancel := context.WithCancel(t.Context())
	ended := await.Run(ctx, t, router)
	defer func() { require.NoError(t, <-ended) }()
	defer cancel()

	require.NoError(t, pub.Publish("orders", message.NewMessage("bad", []byte("{not json")),
		message.NewMessage("second", []byte("{}")), message.NewMessage("good", []byte("{}"))))
	dead, err := queue.Subscriber().Subscribe(ctx, "orders_retry.billing_dlq")
	require.NoError(t, err)
	m := receive(t, dead)
	require.Equal(t, "bad", m.UUID)
	require.Equal(t, "{not json", string(m.Payload))
	m.Ack()
	await.True(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(runs["bad"]) == 3 && len(runs["second"]) == 2 && len(runs["good"]) == 1
	})
	mu.Lock()
	defer mu.Unlock()
	require.GreaterOrEqual(t, runs["bad"][1].Sub(runs["bad"][0]), 50*time.Millisecond)
}

type rescheduler func(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error

func (f rescheduler) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message,
	delay time.Duration,
) error {
	return f(ctx, origin, m, delay)
}

// This is why its schema was not kept: a transaction that has written to any table stalls every topic. Ours is not
// affected (TestForeignTransaction_DoesNotStall).
func TestWatermillSQL_StallsBehindATransaction(t *testing.T) {
	t.Parallel()
	db := openDB(t, services.SharedPostgres(t).Database(t))
	pub, sub := plain(t, db, 30*time.Second)
	messages, err := sub.Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.NoError(t, pub.Publish("orders", message.NewMessage("before", payload)))
	receive(t, messages).Ack()

	_, err = db.ExecContext(t.Context(), "CREATE TABLE other (id INT)")
	require.NoError(t, err)
	forgotten, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = forgotten.ExecContext(t.Context(), "INSERT INTO other VALUES (1)")
	require.NoError(t, err)
	require.NoError(t, pub.Publish("orders", message.NewMessage("behind", payload)))
	select {
	case m := <-messages:
		require.Failf(t, "it no longer stalls: correct the package comment", "got %s", m.UUID)
	case <-time.After(time.Second): // a hundred polls, in real time: that is the test
	}
	require.NoError(t, forgotten.Rollback())
	receive(t, messages).Ack()
}

// This is why its subscriber was not kept: even with SKIP LOCKED in the adapters it holds a connection and a
// transaction for each running handler, and starts a handler that is slower than AckDeadline a second time while it is
// running.
func TestWatermillSQL_SubscriberWithOurAdapters(t *testing.T) {
	t.Parallel()
	const workers = 16
	url := services.SharedPostgres(t).Database(t)
	db := openDB(t, url)
	deadline := 300 * time.Millisecond
	adapter := skipLocked{}
	pub, err := wsql.NewPublisher(db, wsql.PublisherConfig{SchemaAdapter: adapter, AutoInitializeSchema: true},
		watermill.NopLogger{})
	require.NoError(t, err)
	require.NoError(t, pub.Publish("jobs", batch(workers)...))

	var starts atomic.Int32
	release := make(chan struct{})
	var handlers sync.WaitGroup
	for range workers {
		sub, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
			SchemaAdapter: adapter, OffsetsAdapter: adapter, PollInterval: 10 * time.Millisecond, AckDeadline: &deadline,
		}, watermill.NopLogger{})
		require.NoError(t, err)
		messages, err := sub.Subscribe(t.Context(), "jobs")
		require.NoError(t, err)
		go func() {
			for m := range messages {
				starts.Add(1)
				handlers.Go(func() { <-release; m.Ack() })
			}
		}()
		t.Cleanup(func() { require.NoError(t, sub.Close()) })
	}
	await.True(t, func() bool {
		return count(t, db, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in "+
			"transaction'") >= workers
	}, "a transaction for each handler")
	await.True(t, func() bool { return starts.Load() > workers },
		"a handler slower than AckDeadline is started again")
	close(release)

	// Its replacement needs no transaction, and each handler runs once.
	ours := openQueue(t, with(url, longLease+"&x-max-connections=4"))
	messages, err := ours.Subscriber(concurrently(workers)).Subscribe(t.Context(), "ours")
	require.NoError(t, err)
	require.NoError(t, ours.Publisher().Publish("ours", batch(workers)...))
	var running []*message.Message
	for range workers {
		running = append(running, receive(t, messages))
	}
	select {
	case m := <-messages:
		require.Failf(t, "a handler was started again", "%s", m.UUID)
	case <-time.After(twoLongLeases): // in real time: that is the test
	}
	for _, m := range running {
		require.NoError(t, m.Context().Err())
		m.Ack()
	}
}
