// Package redrive_test tests redrive runs from end to end, from dead letters in PostgreSQL to RabbitMQ.
package redrive_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/dlq"
	_ "github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

func TestMain(m *testing.M) { services.Main(m) }

const (
	topic    = "orders"
	group    = "billing"
	consumer = topic + "." + group // the queue's name by brokers.DefaultNames
)

// openBroker opens RabbitMQ with the settings of these tests' processes.
func openBroker(t testing.TB, url string) brokers.Broker {
	t.Helper()
	b, err := brokers.OpenConfig(t.Context(),
		brokers.Config{URL: url, Group: group, Concurrency: 64, PublishTimeout: time.Minute})
	require.NoError(t, err)
	return b
}

// openLetters opens the dead letters, with the process's own spool.
func openLetters(t testing.TB, url string) *dlq.Letters {
	t.Helper()
	l, err := dlq.Open(t.Context(), url, dlq.WithSpool(t.TempDir()), dlq.WithStoreTimeout(time.Minute))
	require.NoError(t, err)
	return l
}

// openFilled opens a store with some dead letters, and the broker, until the test ends.
func openFilled(t testing.TB, store, broker string, letters int) (*dlq.Letters, brokers.Broker) {
	t.Helper()
	l, b := openLetters(t, store), openBroker(t, broker)
	t.Cleanup(func() {
		require.NoError(t, b.Close())
		require.NoError(t, l.Close())
	})
	fill(t, l, 0, letters)
	return l, b
}

// serve consumes the topic with the retry pipeline until the test ends.
func serve(t testing.TB, b brokers.Broker, l *dlq.Letters, handle func(*message.Message) error) {
	t.Helper()
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: b, DeadLetters: l, MaxAttempts: 1,
	})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Minute}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("charge", topic, b.Subscriber(), handle)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := await.Run(ctx, t, router)
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
	})
}

// fill stores the dead letters with the numbers from first up to, but not including, last.
func fill(t testing.TB, l *dlq.Letters, first, last int) {
	t.Helper()
	for ; first < last; first += 1000 {
		batch := make([]*dlq.Entry, min(1000, last-first))
		for i := range batch {
			batch[i] = dlq.NewEntry(dead(first + i))
		}
		_, err := l.Store().Put(t.Context(), batch...)
		require.NoError(t, err)
	}
}

func dead(n int) *envelope.DeadLetter {
	id := fmt.Sprintf("message-%d", n)
	m := message.NewMessage(id, fmt.Appendf(nil, `{"order":%d,"amount":"19.90","customer":"c-%d"}`, n, n%1000))
	m.Metadata[envelope.KeyMessageID] = id
	return &envelope.DeadLetter{
		Message: m, Reason: envelope.ReasonExhausted, Err: envelope.Error{Message: "bank is closed"}, Class: "*bank.Closed",
		Handler: "charge",
		Origin:  envelope.Origin{Broker: "amqp", Topic: topic, Consumer: consumer, RoutingKey: topic}, Attempts: 4,
		At: time.Now(),
	}
}
