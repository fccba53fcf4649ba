package rabbitmq_test

import (
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	wamqp "github.com/redrive-go/redrive/brokers/watermill/amqp"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// foreign is a router on watermill-amqp's own subscriber, with a pipeline whose Rescheduler is our broker on the same
// server.
type foreign struct {
	url      string
	router   *message.Router
	pipeline *middleware.Pipeline
	broker   brokers.Broker
	runs     atomic.Int32 // of a handler that fails at first
	errors   atomic.Int32 // logged by watermill-amqp
	critical atomic.Int32 // logged by the pipeline
}

// countErrors counts the errors that watermill-amqp logs.
type countErrors struct {
	watermill.NopLogger
	n *atomic.Int32
}

func (c countErrors) Error(string, error, watermill.LogFields)         { c.n.Add(1) }
func (c countErrors) With(watermill.LogFields) watermill.LoggerAdapter { return c }

func newForeign(t *testing.T, marshaler wmamqp.Marshaler, params string) *foreign {
	t.Helper()
	url := services.SharedRabbitMQ(t).VHost(t)
	f := &foreign{url: url}
	cfg := wmamqp.NewDurablePubSubConfig(url, func(topic string) string { return topic + ".billing" })
	cfg.Marshaler = marshaler
	sub, err := wmamqp.NewSubscriber(cfg, countErrors{n: &f.errors})
	require.NoError(t, err)
	require.NoError(t, sub.SubscribeInitialize("orders"))
	pub, err := wmamqp.NewPublisher(cfg, watermill.NopLogger{})
	require.NoError(t, err)
	require.NoError(t, pub.Publish("orders", message.NewMessage("1", []byte("order"))))
	require.NoError(t, pub.Close())

	f.broker, err = brokers.Open(t.Context(), url+"?declare=adopt"+params)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.broker.Close()) })
	f.pipeline, err = middleware.New(middleware.Config{
		Rescheduler: f.broker, DeadLetters: f.broker, MaxAttempts: 3, Backoff: middleware.Constant(100 * time.Millisecond),
		Logger: slog.New(slog.NewTextHandler(criticals{&f.critical}, &slog.HandlerOptions{Level: middleware.LevelCritical})),
	})
	require.NoError(t, err)
	f.router, err = message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	f.router.AddMiddleware(f.pipeline.Middleware)
	f.router.AddConsumerHandler("billing", "orders", sub, func(*message.Message) error {
		if f.runs.Add(1) == 1 {
			return errors.New("the payment service is down")
		}
		return nil
	})
	return f
}

// criticals counts critical log lines.
type criticals struct{ n *atomic.Int32 }

func (c criticals) Write(p []byte) (int, error) { c.n.Add(1); return len(p), nil }

// run ends with the test.
func (f *foreign) run(t *testing.T) {
	t.Helper()
	ended := await.Run(t.Context(), t, f.router)
	t.Cleanup(func() { require.NoError(t, errors.Join(f.router.Close(), <-ended)) })
}

// A retry by RabbitMQ has a table among its headers, on which watermill-amqp's marshaler fails: the message used to be
// redelivered thousands of times a second without reaching a handler. The router plugin refuses this before a message
// is consumed.
func TestWatermillSubscriber_IsRefusedAtStart(t *testing.T) {
	t.Parallel()
	f := newForeign(t, wmamqp.DefaultMarshaler{}, "&group=billing")
	f.router.AddPlugin(f.pipeline.Plugin)
	err := f.router.Run(t.Context())
	require.ErrorIs(t, err, middleware.ErrMiswired)
	require.ErrorContains(t, err, "open watermill+amqp://")
	require.Zero(t, f.runs.Load())
}

// Without the plugin the first message is refused, and stays in its queue.
func TestWatermillSubscriber_IsRefusedWithItsFirstMessage(t *testing.T) {
	t.Parallel()
	f := newForeign(t, wmamqp.DefaultMarshaler{}, "&group=billing")
	f.run(t)
	await.Count(t, 1, func() int { return int(f.critical.Load()) }, "refusals in the log")
	require.Zero(t, f.runs.Load(), "its first retry would lose it")
	require.Zero(t, f.errors.Load(), "watermill-amqp has read it")
}

// With a marshaler that reads every header it works, and the plugin detects that.
func TestWatermillSubscriber_WithATolerantMarshaler(t *testing.T) {
	t.Parallel()
	f := newForeign(t, wamqp.Marshaler{}, "&group=billing")
	f.router.AddPlugin(f.pipeline.Plugin)
	f.run(t)
	await.Count(t, 2, func() int { return int(f.runs.Load()) }, "runs: the one that fails, and its retry")
	require.Zero(t, f.critical.Load())
	require.Zero(t, f.errors.Load())
}

// On RabbitMQ an adapter names its consumers by their groups and the native driver by their queues, so no member of the
// adapter's group would read the retry of a native one. It used to be stored, and to wait forever.
func TestWatermillAdapter_AsTheReschedulerOfANativeConsumer(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	native := openBroker(t, url, group("billing"))
	delays, err := brokers.Open(t.Context(), "mem://")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, delays.Close()) })
	adapter, err := wamqp.New(t.Context(), wamqp.Config{
		Broker: brokers.Config{URL: "watermill+" + url, Group: "billing"}, Delays: delays,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, adapter.Close()) })
	messages, err := native.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.NoError(t, native.Publisher().Publish("orders", newMessage("x")))
	m := <-messages
	origin, ok := envelope.OriginFrom(m.Context())
	require.True(t, ok)
	err = adapter.Reschedule(m.Context(), *origin, m.Copy(), time.Second)
	require.ErrorIs(t, err, brokers.ErrUnroutable)
	require.ErrorContains(t, err, "does not read what is rescheduled here")
	m.Ack()
}

// A plain subscriber may read any queue. Whether or not the one that the broker would send the retry to exists, it is
// lost if no consumer reads it.
func TestWatermillSubscriber_OfAnotherQueueThanTheBrokers(t *testing.T) {
	t.Parallel()
	for name, exists := range map[string]bool{"which exists": true, "which does not": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newForeign(t, wamqp.Marshaler{}, "") // no group: the queue is orders, not orders.billing
			if exists {
				_, err := dialPlain(t, f.url).ch.QueueDeclare("orders", true, false, false, false, nil)
				require.NoError(t, err)
			}
			f.router.AddPlugin(f.pipeline.Plugin)
			f.run(t)
			await.Count(t, 2, func() int { return int(f.runs.Load()) }, "runs: the one that fails, and its redelivery")
			require.NotZero(t, f.critical.Load(), "the refused retry is logged")
		})
	}
}

// One server has several addresses, and a program may have a broker on each.
func TestReschedule_OverAnotherAddress(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	b := openBroker(t, url, group("billing"))
	other := openBroker(t, strings.Replace(url, "127.0.0.1", "localhost", 1), group("operator"))
	messages, err := b.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.NoError(t, b.Publisher().Publish("orders", newMessage("x")))
	m := <-messages
	origin, ok := envelope.OriginFrom(m.Context())
	require.True(t, ok)
	require.NoError(t, other.Reschedule(m.Context(), *origin, m.Copy(), 0))
	m.Ack()
	(<-messages).Ack()
}
