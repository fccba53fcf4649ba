package rabbitmq_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// A message that arrives early and cannot be forwarded for the rest of its delay, because there is no queue for it, is
// held: it is handled when it is due, not before, and no delivery is counted.
func TestDelays_ARestThatCannotBeForwardedIsHeld(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	for queue, args := range map[string]amqp.Table{
		"orders": {"x-queue-type": "quorum"}, "orders_retry": retryArgs(1000), "orders_dlq": nil,
	} {
		_, err := p.ch.QueueDeclare(queue, true, false, false, false, args)
		require.NoError(t, err)
	}
	b := openBroker(t, url, naming(brokers.Laravel()), params("declare", "none"))
	s := serve(t, b, "orders", middleware.Laravel(1), func(*message.Message) error { return nil })
	_, err := p.ch.QueueDelete("orders_retry", false, false, false)
	require.NoError(t, err)
	due := time.Now().Add(800 * time.Millisecond)
	_, err = p.ch.QueueDeclare("wait", true, false, false, false, amqp.Table{
		"x-message-ttl": int32(1), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders",
	})
	require.NoError(t, err)
	p.send("", "wait", amqp.Publishing{MessageId: "m", Headers: amqp.Table{envelope.KeyNotBefore: due.UnixMilli()}})
	r := s.next()
	require.Equal(t, "m", r.message.UUID)
	require.False(t, r.at.Before(due.Truncate(time.Millisecond)), "early")
	require.False(t, r.origin.Redelivered, "it was held, not requeued")
	s.stop()
	require.NoError(t, b.Close())
	require.Zero(t, p.depth("orders"))
	require.Empty(t, s.runs)
}

// A message that is nacked more often than the crash limit and RabbitMQ's own delivery limit allow, and that cannot be
// republished because its handler made a header too large, is redelivered unchanged.
func TestConsume_ANackThatCannotBeRepublishedLosesNothing(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.Laravel()),
		params("grid", "false", "crash-limit", "3", "delivery-limit", "4", "nack-pause", "5ms"))
	messages, err := b.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("m", []byte("x"))))
	for range 6 {
		m := <-messages
		require.Equal(t, "m", m.UUID)
		require.NotContains(t, m.Metadata, "big")
		require.Equal(t, "x", string(m.Payload))
		m.Payload[0] = 'y'
		m.Metadata["big"] = strings.Repeat("x", 200<<10)
		m.Nack()
	}
	(<-messages).Ack()
	await.True(t, func() bool { return p.depth("orders") == 0 })
	require.Zero(t, p.depth("orders_dlq"))
}

// A publication that the queue rejects is repeated: a queue that was full for a moment accepts the message once there
// is room.
func TestPublish_IsRepeatedWhileTheQueueRefuses(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.Laravel()))
	// The queue has room for one message, which expires after 100 ms, so it is full at the first attempt but not at the
	// last.
	_, err := p.ch.QueueDeclare("full", true, false, false, false,
		amqp.Table{"x-max-length": int32(1), "x-overflow": "reject-publish", "x-message-ttl": int32(100)})
	require.NoError(t, err)
	for i := range 5 {
		require.NoError(t, b.Publisher().Publish("full", message.NewMessage(strconv.Itoa(i), nil)))
	}
}

// If a dead letter queue or delay queue is missing because no consumer has run yet, it is declared.
func TestReschedule_DeclaresMissingQueues(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	_, err := p.ch.QueueDeclare("orders", true, false, false, false, nil)
	require.NoError(t, err)
	b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false"),
		delays(50*time.Millisecond, 70*time.Millisecond))
	origin := envelope.Origin{Topic: "orders", Consumer: "orders"}
	require.NoError(t, b.Reschedule(t.Context(), origin, message.NewMessage("again", nil), 50*time.Millisecond))
	require.Equal(t, "again", p.next("orders").MessageId)
	require.NoError(t, b.DeadLetter(t.Context(),
		&envelope.DeadLetter{Message: message.NewMessage("dead", nil), Origin: origin}))
	require.Equal(t, "dead", p.next("orders_dlq").MessageId)
}

// A deleted delay queue for first deliveries is declared again by the next publication.
func TestPublish_ADeletedDelayQueueIsRedeclared(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, params("grid", "false"), delays(50*time.Millisecond))
	require.NoError(t, b.Apply(t.Context(), b.Plan("orders")))
	publish := func(id string) error {
		m := message.NewMessage(id, nil)
		envelope.SetDelay(m, 50*time.Millisecond)
		return b.Publisher().Publish("orders", m)
	}
	require.NoError(t, publish("before"))
	require.Equal(t, "before", p.next("orders").MessageId)
	_, err := p.ch.QueueDelete("redrive.delayed.orders.50", false, false, false)
	require.NoError(t, err)
	require.NoError(t, publish("after"))
	require.Equal(t, "after", p.next("orders").MessageId)
}

// If more messages are returned as unroutable than one channel may have in flight, each of them is reported and none is
// treated as stored.
func TestPublish_EveryReturnIsReported(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	b := openBroker(t, url, naming(brokers.Laravel()), func(c *brokers.Config) { c.PublishTimeout = time.Minute })
	const n = 2000
	origins, messages := make([]envelope.Origin, n), make([]*message.Message, n)
	for i := range n {
		origins[i] = envelope.Origin{Topic: "missing", Consumer: "missing"}
		messages[i] = message.NewMessage(strconv.Itoa(i), nil)
	}
	for i, err := range b.RescheduleAll(t.Context(), origins, messages) {
		require.ErrorIs(t, err, brokers.ErrUnroutable, i)
	}
}
