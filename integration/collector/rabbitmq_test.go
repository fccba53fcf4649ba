package collector_test

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// service is a consumer with a plain client and a dead letter queue, as in many RabbitMQ tutorials.
type service struct {
	channel *amqp.Channel
}

func newService(t *testing.T, url string) *service {
	t.Helper()
	connection, err := amqp.Dial(url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, connection.Close()) })
	channel, err := connection.Channel()
	require.NoError(t, err)
	require.NoError(t, channel.ExchangeDeclare("shop", amqp.ExchangeTopic, true, false, false, false, nil))
	_, err = channel.QueueDeclare("orders", true, false, false, false, amqp.Table{
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders.dlq",
	})
	require.NoError(t, err)
	_, err = channel.QueueDeclare("orders.dlq", true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, channel.QueueBind("orders", "orders.*", "shop", false, nil))
	// A second consumer of the same events must not get the first one's redrives.
	_, err = channel.QueueDeclare("statistics", true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, channel.QueueBind("statistics", "orders.*", "shop", false, nil))
	require.NoError(t, channel.Confirm(false))
	return &service{channel}
}

func (s *service) publish(t *testing.T, id string, body []byte) {
	t.Helper()
	confirm, err := s.channel.PublishWithDeferredConfirmWithContext(t.Context(), "shop", "orders.created", true, false,
		amqp.Publishing{
			MessageId: id, ContentType: "application/json", Type: "order.created", DeliveryMode: amqp.Persistent, Priority: 3,
			Headers: amqp.Table{"tenant": "acme", "attempt": int32(7), "nested": amqp.Table{"flag": true}}, Body: body,
		})
	require.NoError(t, err)
	acked, err := confirm.WaitContext(t.Context())
	require.NoError(t, err)
	require.True(t, acked)
}

// take returns the next message of a queue.
func (s *service) take(t *testing.T, queue string) amqp.Delivery {
	t.Helper()
	var d amqp.Delivery
	eventually(t, func() bool {
		var ok bool
		var err error
		d, ok, err = s.channel.Get(queue, false)
		require.NoError(t, err)
		return ok
	})
	return d
}

func (s *service) depth(t *testing.T, queue string) int {
	t.Helper()
	q, err := s.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(t, err)
	return q.Messages
}

// A service in any language rejects a message. The message is collected with RabbitMQ's reason, and returns to that
// service's queue and to no other consumer, each header with its type. If it is rejected again, it is the same entry.
func TestRabbitMQ_ForeignService(t *testing.T) {
	url := services.SharedRabbitMQ(t).VHost(t)
	s := newService(t, url)
	letters := newLetters(t)
	broker, cfg := operate(t, url)
	s.publish(t, "order-1", []byte(`{"order":1}`))
	first := s.take(t, "orders")
	require.NoError(t, first.Reject(false))

	start(t, letters, collector.Source{
		Broker: "rabbit", Topic: "orders.dlq", Subscriber: broker.Subscriber(brokers.WithConcurrency(20)),
	})
	eventually(t, func() bool { return len(entries(t, letters)) == 1 })
	e := entries(t, letters)[0]
	require.Equal(t, "order-1", e.EventID)
	require.Equal(t, envelope.Origin{
		Broker: "amqp", Topic: "orders", Consumer: "orders", Exchange: "shop", RoutingKey: "orders.created",
	}, e.Origin)
	require.Equal(t, "rejected by a consumer of queue orders", e.ErrorMessage)
	require.Equal(t, 1, e.Attempts)
	eventually(t, func() bool { return s.depth(t, "orders.dlq") == 0 })

	router, err := collector.NewRouter(collector.RouterConfig{Store: letters.Store(), Targets: []collector.Target{
		{Name: "rabbit", Scheme: cfg.Scheme(), Redriver: broker},
	}})
	require.NoError(t, err)
	_, err = letters.Manager(router).Redrive(t.Context(), e.ID, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	back := s.take(t, "orders")
	require.Equal(t, `{"order":1}`, string(back.Body))
	require.Equal(t, []any{"order-1", "application/json", "order.created", uint8(3)},
		[]any{back.MessageId, back.ContentType, back.Type, back.Priority})
	require.NotEmpty(t, back.Headers[envelope.KeyStage], "the redrive starts a new chain of retries")
	delete(back.Headers, envelope.KeyStage)
	require.Equal(t, amqp.Table{
		"tenant": "acme", "attempt": int32(7), "nested": amqp.Table{"flag": true},
		envelope.KeyRedriveID: driver.FormatID(e.ID), envelope.KeyRedriveCount: "1",
		envelope.KeyConsumer: "orders", envelope.KeyExchange: "shop", envelope.KeyRoutingKey: "orders.created",
	}, back.Headers)
	require.Equal(t, 1, s.depth(t, "statistics"), "the first publication, but no redrive")
	e = entries(t, letters)[0]
	require.Equal(t, dlq.Resolved, e.Status)

	require.NoError(t, back.Reject(false))
	eventually(t, func() bool { return entries(t, letters)[0].Status == dlq.Pending })
	all := entries(t, letters)
	require.Len(t, all, 1)
	require.Equal(t, 1, all[0].RedriveCount)
	require.Equal(t, e.Origin.RoutingKey, all[0].Origin.RoutingKey, "the first routing key")
}

// A collector of thousands of dead letters is stopped and restarted twice meanwhile. Every letter is stored once.
func TestRabbitMQ_StopAndStart(t *testing.T) {
	const n = 3000
	url := services.SharedRabbitMQ(t).VHost(t)
	s := newService(t, url)
	for i := range n {
		s.publishTo(t, "orders.dlq", fmt.Sprintf("order-%d", i))
	}
	letters := newLetters(t)
	broker, _ := operate(t, url)
	source := collector.Source{Broker: "rabbit", Topic: "orders.dlq"}
	for _, upTo := range []int64{n / 10, n / 3} {
		source.Subscriber = broker.Subscriber(brokers.WithConcurrency(50))
		c, stop := start(t, letters, source)
		eventually(t, func() bool { return c.Stats()[0].Collected >= upTo })
		stop()
		require.NoError(t, source.Subscriber.Close())
		require.Zero(t, c.Stats()[0].Held)
	}
	source.Subscriber = broker.Subscriber(brokers.WithConcurrency(50))
	start(t, letters, source)
	eventually(t, func() bool { return s.depth(t, "orders.dlq") == 0 && len(entries(t, letters)) >= n })
	ids := map[string]bool{}
	for _, e := range entries(t, letters) {
		require.False(t, ids[e.EventID], "stored twice: %s", e.EventID)
		ids[e.EventID] = true
	}
	require.Len(t, ids, n)
}

// publishTo publishes to a queue without confirms; the test waits for the queue's depth instead.
func (s *service) publishTo(t *testing.T, queue, id string) {
	t.Helper()
	require.NoError(t, s.channel.PublishWithContext(t.Context(), "", queue, true, false, amqp.Publishing{
		MessageId: id, DeliveryMode: amqp.Persistent, Body: []byte(id),
	}))
}

// The collector waits for a missing queue, and does not declare it.
func TestRabbitMQ_MissingQueue(t *testing.T) {
	url := services.SharedRabbitMQ(t).VHost(t)
	s := newService(t, url)
	letters := newLetters(t)
	broker, _ := operate(t, url)
	c, _ := start(t, letters, collector.Source{Broker: "rabbit", Topic: "later_dlq", Subscriber: broker.Subscriber()})
	eventually(t, func() bool { return c.Stats()[0].Err != "" })
	require.Contains(t, c.Stats()[0].Err, "later_dlq")

	_, err := s.channel.QueueDeclare("later_dlq", true, false, false, false, nil)
	require.NoError(t, err, "the collector did not declare it with other arguments")
	s.publishTo(t, "later_dlq", "late")
	eventually(t, func() bool { return len(entries(t, letters)) == 1 })
	require.Empty(t, c.Stats()[0].Err)
	require.Equal(t, "later", entries(t, letters)[0].Origin.Consumer)
}

// A service that uses this module may store dead letters only in RabbitMQ: they are collected with their error, and
// return to its queue with the routing key of their first publication.
func TestRabbitMQ_OwnService(t *testing.T) {
	url := services.SharedRabbitMQ(t).VHost(t)
	own, err := brokers.Open(t.Context(), url, func(c *brokers.Config) {
		c.Group, c.PublishTimeout = "billing", await.Patience
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	consumer, err := own.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	m := message.NewMessage("order-1", []byte("order"))
	m.Metadata["tenant"] = "acme"
	require.NoError(t, own.Publisher().Publish("orders", m))
	received := <-consumer
	origin, _ := envelope.OriginFrom(received.Context())
	dead := envelope.RecordFailure(received, envelope.Failure{
		Err: envelope.Error{Message: "bank: timeout", Code: "504"}, Retry: 4, Reason: envelope.ReasonExhausted,
		Handler: "pay",
	})
	require.NoError(t, own.DeadLetter(t.Context(), &envelope.DeadLetter{Message: dead, Origin: *origin}))
	received.Ack()

	letters := newLetters(t)
	broker, cfg := operate(t, url)
	start(t, letters, collector.Source{Broker: "rabbit", Topic: "orders.billing_dlq", Subscriber: broker.Subscriber()})
	eventually(t, func() bool { return len(entries(t, letters)) == 1 })
	e := entries(t, letters)[0]
	require.Equal(t, []string{"orders", "orders.billing", "redrive", "orders", "pay", "bank: timeout", "504"}, []string{
		e.Origin.Topic, e.Origin.Consumer, e.Origin.Exchange, e.Origin.RoutingKey, e.Handler, e.ErrorMessage, e.ErrorCode,
	})

	router, err := collector.NewRouter(collector.RouterConfig{Store: letters.Store(), Targets: []collector.Target{
		{Name: "rabbit", Scheme: cfg.Scheme(), Redriver: broker},
	}})
	require.NoError(t, err)
	_, err = letters.Manager(router).Redrive(t.Context(), e.ID, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	back := <-consumer
	back.Ack()
	again, _ := envelope.OriginFrom(back.Context())
	require.Equal(t, "orders", again.RoutingKey)
	require.Equal(t, "redrive", again.Exchange)
	require.Equal(t, "acme", back.Metadata["tenant"])
	control, err := envelope.ReadControl(back)
	require.NoError(t, err)
	require.Zero(t, control.RetryCount)
	require.Equal(t, driver.FormatID(e.ID), control.RedriveID)
}
