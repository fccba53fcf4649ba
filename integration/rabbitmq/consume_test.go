package rabbitmq_test

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// Any message of a foreign producer can be read, and is in the dead letter queue as it arrived, except for headers that
// the broker added and those that would misroute or delete a message.
func TestConsume_ForeignMessageOfEveryShape(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.Laravel()), delays(50*time.Millisecond))
	s := serve(t, b, "orders", middleware.Config{
		MaxAttempts: 2, Backoff: middleware.Constant(50 * time.Millisecond),
	}, fails)
	_, err := p.ch.QueueDeclare("payments", true, false, false, false, nil)
	require.NoError(t, err)

	headers := amqp.Table{
		"b": int8(-1), "B": uint8(1), "s": int16(-2), "u": uint16(2), "I": int32(-3), "i": uint32(3), "l": int64(-4),
		"f": float32(0.5), "d": 0.25, "t": true, "S": "text", "x": []byte{0, 1, 0xff}, "V": nil,
		"D": amqp.Decimal{Scale: 2, Value: 314},
		"T": time.Unix(1_700_000_000, 0), "A": []any{int32(1), "two", amqp.Table{"three": int64(3)}},
		"F": amqp.Table{"k": amqp.Table{"v": nil}},
	}
	sent := amqp.Table{"x-death": "forged", "x-delivery-count": int64(3), "x-delay": "abc"}
	maps.Copy(sent, headers)
	p.send("", "orders", amqp.Publishing{
		Headers: sent, MessageId: "m", CorrelationId: "c", ContentType: "text/plain", ContentEncoding: "identity",
		Type:  "thing.happened",
		AppId: "foreign", ReplyTo: "answers", Priority: 3, Timestamp: time.Unix(1_700_000_001, 0), UserId: "guest",
		Expiration: "60000",
		Body:       []byte("\x00\xff not JSON"),
	})
	first, second := s.next(), s.next()
	require.False(t, first.origin.Redelivered)
	require.Equal(t, "orders", first.origin.RoutingKey)
	require.Equal(t, "orders", second.origin.RoutingKey)
	require.Equal(t, "m", second.message.UUID)
	require.Equal(t, "thing.happened", second.message.Metadata[envelope.KeyAMQPType])

	d := p.next("orders_dlq")
	for key, want := range headers {
		if at, ok := want.(time.Time); ok {
			require.True(t, at.Equal(d.Headers[key].(time.Time)))
			continue
		}
		require.Equal(t, want, d.Headers[key], key)
	}
	require.NotContains(t, d.Headers, "x-death")
	require.NotContains(t, d.Headers, "x-delay")
	require.Equal(t, "\x00\xff not JSON", string(d.Body))
	require.Equal(t, []any{"m", "c", "text/plain", "identity", "thing.happened", "foreign", "answers", uint8(3), "", ""},
		[]any{
			d.MessageId, d.CorrelationId, d.ContentType, d.ContentEncoding, d.Type, d.AppId, d.ReplyTo, d.Priority,
			d.UserId, d.Expiration,
		})
	require.True(t, d.Timestamp.Equal(time.Unix(1_700_000_001, 0)))
	require.Zero(t, p.depth("payments"))
}

// A copied CC header would send the retry to another service's queue, because RabbitMQ leaves the header in the
// message.
func TestConsume_CCIsNotRepublished(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false"))
	s := serve(t, b, "orders", middleware.Laravel(3), fails)
	_, err := p.ch.QueueDeclare("payments", true, false, false, false, nil)
	require.NoError(t, err)
	p.send("", "orders", amqp.Publishing{Headers: amqp.Table{"CC": []any{"payments"}}, MessageId: "m"})
	for range 3 {
		s.next()
	}
	p.next("orders_dlq")
	require.Equal(t, 1, p.depth("payments"), "only the producer's copy")
}

// If the queue is deleted while it has a consumer, no empty message reaches the handler, and the queue is recreated.
func TestConsume_QueueDeletedUnderIt(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false"))
	s := serve(t, b, "orders", middleware.Laravel(1), func(*message.Message) error { return nil })
	for round := range 10 {
		_, err := p.ch.QueueDelete("orders", false, false, false)
		require.NoError(t, err)
		id := strconv.Itoa(round)
		await.True(t, func() bool {
			return b.Publisher().Publish("orders", message.NewMessage(id, []byte("x"))) == nil
		})
		require.Equal(t, id, s.next().message.UUID)
	}
	require.Empty(t, s.runs)
}

// Handlers that are running when the service stops finish, and their acks reach the broker: nothing is redelivered.
func TestConsume_ShutdownLosesNoAck(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false", "prefetch", "50"))
	const total = 2000
	batch := make([]*message.Message, total)
	for i := range batch {
		batch[i] = message.NewMessage(strconv.Itoa(i), []byte("x"))
	}
	require.NoError(t, b.Apply(t.Context(), b.Plan("orders")))
	require.NoError(t, b.Publisher().Publish("orders", batch...))

	var mu sync.Mutex
	seen := map[string]int{}
	var count atomic.Int64
	for count.Load() < total { // a service that is redeployed again and again
		before := count.Load()
		c := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false", "prefetch", "50"))
		s := serve(t, c, "orders", middleware.Laravel(1), func(m *message.Message) error {
			mu.Lock()
			seen[m.UUID]++
			mu.Unlock()
			count.Add(1)
			return nil
		}, brokers.WithConcurrency(8))
		await.True(t, func() bool { return count.Load() >= min(total, before+150) })
		s.stop()
		require.NoError(t, c.Close())
	}
	twice := map[string]int{}
	for id, n := range seen {
		if n > 1 {
			twice[id] = n
		}
	}
	require.Empty(t, twice, "handled again after the ack")
	require.Len(t, seen, total)
}

// A slow message at the head of the queue does not delay the acks of others.
func TestConsume_AcksAreNotDelayedByASlowMessage(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false", "prefetch", "4"))
	release := make(chan struct{})
	s := serve(t, b, "orders", middleware.Laravel(1), func(m *message.Message) error {
		if m.UUID == "slow" {
			<-release
		}
		return nil
	}, brokers.WithConcurrency(4))
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("slow", nil)))
	s.next()
	batch := make([]*message.Message, 200)
	for i := range batch {
		batch[i] = newMessage("x")
	}
	require.NoError(t, b.Publisher().Publish("orders", batch...))
	for range batch {
		s.next() // if their acks were delayed, the third would be the last
	}
	close(release)
}

// A nack is not treated as a crash, however often a handler nacks a message, and the message is redelivered at a
// moderate pace.
func TestConsume_NacksAreNotCrashes(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.Laravel()),
		params("grid", "false", "crash-limit", "3", "delivery-limit", "4", "nack-pause", "5ms"))
	messages, err := b.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("m", []byte("x"))))
	for range 20 {
		m := <-messages
		require.Equal(t, "m", m.UUID)
		m.Nack()
	}
	(<-messages).Ack()
	require.Zero(t, p.depth("orders_dlq"))
}

// A broker that stops responding with its TCP connections open, or that is down, blocks neither Publish nor Close.
func TestClose_WhileTheBrokerIsDown(t *testing.T) { //nolint:tparallel // one broker, one fault after the other
	t.Parallel()
	server := borrowSecond(t, true)
	url := server.VHost(t)
	open := func(t *testing.T) (*rabbitmq.Broker, *service) {
		t.Helper()
		b := openBroker(t, url, naming(brokers.Laravel()), params("grid", "false"),
			func(c *brokers.Config) { c.PublishTimeout = time.Second })
		s := serve(t, b, "orders", middleware.Laravel(1), func(*message.Message) error { return nil })
		await.True(t, func() bool { return b.Publisher().Publish("orders", newMessage("x")) == nil })
		s.next()
		return b, s
	}
	t.Run("frozen", func(t *testing.T) {
		b, s := open(t)
		require.NoError(t, server.Pause())
		defer func() { require.NoError(t, server.Resume()) }()
		err := b.Publisher().Publish("orders", newMessage(strings.Repeat("x", 4<<20))) // more than socket buffers take
		require.Error(t, err)
		start := time.Now()
		s.stop()
		require.NoError(t, b.Close())
		require.Less(t, time.Since(start), 2*patience)
	})
	t.Run("gone", func(t *testing.T) {
		b, s := open(t)
		require.NoError(t, server.Kill())
		start := time.Now()
		require.Error(t, b.Publisher().Publish("orders", newMessage("x")))
		require.Less(t, time.Since(start), patience)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Error(t, b.Ping(ctx))
		start = time.Now()
		s.stop()
		require.NoError(t, b.Close())
		require.Less(t, time.Since(start), patience)
	})
}

// RabbitMQ before 4.0 trusts an x-death that a client sent and drops a message that seems to loop.
func TestDelays_ForgedDeathsDoNotDropTheMessage(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.Laravel()), delays(50*time.Millisecond), params("grid", "false"))
	s := serve(t, b, "orders", middleware.Config{
		MaxAttempts: 4, Backoff: middleware.Constant(50 * time.Millisecond),
	}, fails)
	p.send("", "orders", amqp.Publishing{MessageId: "m", Headers: amqp.Table{"x-death": []any{
		amqp.Table{
			"queue": "orders_retry", "reason": "expired", "count": int64(1), "exchange": "",
			"routing-keys": []any{"orders_retry"},
		},
		amqp.Table{
			"queue": "orders", "reason": "expired", "count": int64(1), "exchange": "",
			"routing-keys": []any{"orders"},
		},
	}}})
	for range 4 {
		s.next()
	}
	require.Equal(t, "m", p.next("orders_dlq").MessageId)
}

// A dead letter that was looked at and returned, as in the management page, may have killed its reader as far as the
// count shows. It is published again for its collector, and keeps the origin to which a redrive sends it.
func TestConsume_ACountedDeadLetterKeepsItsOrigin(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, group("billing"))
	serve(t, b, "orders", middleware.Config{MaxAttempts: 1}, fails)
	require.NoError(t, b.Publisher().Publish("orders", newMessage("x")))
	const dead = "orders.billing_dlq"
	for range 3 {
		p.refuse(dead, true)
	}

	reader := openBroker(t, url, params("declare", "read"))
	messages, err := reader.Subscriber().Subscribe(t.Context(), dead)
	require.NoError(t, err)
	m := <-messages
	defer m.Ack()
	require.Equal(t, []string{"orders", "orders.billing", "redrive", "orders"}, []string{
		m.Metadata[envelope.KeyTopic], m.Metadata[envelope.KeyConsumer], m.Metadata[envelope.KeyExchange],
		m.Metadata[envelope.KeyRoutingKey],
	})
}

// So does one of another system, whose origin only RabbitMQ's own headers tell.
func TestConsume_ACountedForeignDeadLetterKeepsItsDeath(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	for queue, args := range map[string]amqp.Table{
		"mail":     {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "mail.dlq"},
		"mail.dlq": {"x-queue-type": "quorum"},
	} {
		_, err := p.ch.QueueDeclare(queue, true, false, false, false, args)
		require.NoError(t, err)
	}
	p.send("", "mail", amqp.Publishing{MessageId: "m"})
	p.refuse("mail", false)
	for range 3 {
		p.refuse("mail.dlq", true)
	}
	reader := openBroker(t, url, params("declare", "read"))
	messages, err := reader.Subscriber().Subscribe(t.Context(), "mail.dlq")
	require.NoError(t, err)
	m := <-messages
	defer m.Ack()
	require.Contains(t, m.Metadata["x-death"], `"queue":"mail","reason":"rejected"`)

	origin := envelope.Origin{Topic: "mail", Consumer: "mail"}
	require.NoError(t, reader.Reschedule(envelope.WithExistingOnly(m.Context()), origin, m.Copy(), 0))
	require.NotContains(t, p.next("mail").Headers, "x-death", "its consumer expects a list there")
}

// A producer may have copied the headers of another consumer's dead letter. That is not the origin of its message.
func TestConsume_ACountedMessageKeepsItsOrigin(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, group("mail"))
	first, err := b.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.NoError(t, b.Publisher().Publish("orders", newMessage("first")))
	(<-first).Ack()
	require.NoError(t, b.Close())
	p.send("redrive", "orders", amqp.Publishing{MessageId: "m", Headers: amqp.Table{
		envelope.KeyConsumer: "orders.billing", envelope.KeyTopic: "orders", envelope.KeyRoutingKey: "other",
	}})
	for range 3 {
		p.refuse("orders.mail", true)
	}
	again, err := openBroker(t, url, group("mail")).Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	m := <-again
	defer m.Ack()
	origin, ok := envelope.OriginFrom(m.Context())
	require.True(t, ok)
	require.Equal(t, []string{"redrive", "orders"}, []string{origin.Exchange, origin.RoutingKey})
}
