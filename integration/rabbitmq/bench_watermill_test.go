package rabbitmq_test

import (
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/integration/await"
)

// The peer is watermill-amqp with the best settings: confirms, a pool of channels, and a marshaler that accepts
// RabbitMQ's headers, because its own rejects every message that returns from a delay queue.

type tolerantMarshaler struct{ wamqp.DefaultMarshaler }

func (t tolerantMarshaler) Unmarshal(d amqp.Delivery) (*message.Message, error) {
	for key, value := range d.Headers {
		if _, text := value.(string); !text {
			delete(d.Headers, key)
		}
	}
	m, err := t.DefaultMarshaler.Unmarshal(d)
	if err == nil && m.UUID == "" {
		m.UUID = d.MessageId
	}
	return m, err
}

func (a *arena) watermillConfig() wamqp.Config {
	cfg := wamqp.NewDurableQueueConfig(a.url)
	cfg.Marshaler = tolerantMarshaler{}
	if a.kind == "quorum" {
		cfg.Queue.Arguments = amqp.Table{"x-queue-type": "quorum"}
	}
	cfg.Publish.ConfirmDelivery = true
	cfg.Publish.ChannelPoolSize = 64
	cfg.Publish.Mandatory = true
	cfg.Consume.Qos.PrefetchCount = rawPrefetch
	return cfg
}

func (a *arena) watermillPublisher() *wamqp.Publisher {
	a.Helper()
	pub, err := wamqp.NewPublisher(a.watermillConfig(), watermill.NopLogger{})
	require.NoError(a, err)
	a.Cleanup(func() { _ = pub.Close() })
	return pub
}

func (a *arena) watermillSubscribers(n int) []message.Subscriber {
	a.Helper()
	subs := make([]message.Subscriber, n)
	for i := range subs {
		sub, err := wamqp.NewSubscriber(a.watermillConfig(), watermill.NopLogger{})
		require.NoError(a, err)
		subs[i] = sub
	}
	return subs
}

// retryWatermill is the retry cycle built from Watermill's parts: eight subscriptions, and a handler that publishes to
// the delay queue.
func (a *arena) retryWatermill(queue, retry string, n int, pub message.Publisher) time.Duration {
	a.Helper()
	return a.route(n, queue, nil, func(m *message.Message) (bool, error) {
		if m.Metadata["x-retry-count"] != "" {
			return true, nil
		}
		again := m.Copy()
		again.Metadata["x-retry-count"] = "1"
		return false, pub.Publish(retry, again)
	}, a.watermillSubscribers(8)...)
}

// blockedByRetry counts how many good messages Watermill's Retry lets through in 2 s while 1 % of the messages fail.
func (a *arena) blockedByRetry(queue string) float64 {
	a.Helper()
	retry := middleware.Retry{MaxRetries: 100, InitialInterval: time.Second, MaxInterval: time.Second}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: time.Second}, watermill.NopLogger{})
	require.NoError(a, err)
	router.AddMiddleware(retry.Middleware)
	var good atomic.Int64
	for i, sub := range a.watermillSubscribers(8) {
		router.AddConsumerHandler(string(rune('a'+i)), queue, sub, func(m *message.Message) error {
			if isBad(m) {
				return errDown
			}
			good.Add(1)
			return nil
		})
	}
	await.Run(a.Context(), a, router)
	<-time.After(2 * time.Second) // real time: the good ones are counted meanwhile
	rate := float64(good.Load()) / 2
	_ = router.Close() // handlers that sleep in Retry make it time out
	return rate
}
