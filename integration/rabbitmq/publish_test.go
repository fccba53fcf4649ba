package rabbitmq_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
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

// Publishing to a missing queue, exchange or key returns an error that names it, also among many calls that succeed.
func TestPublish_ToAMissingQueueIsAnErrorThatNamesIt(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	queues := openBroker(t, url, naming(brokers.Laravel()))
	bus := openBroker(t, url, naming(brokers.ServiceBus("easyweek")), func(c *brokers.Config) { c.RefuseUnrouted = true })
	missing := openBroker(t, url, naming(brokers.ServiceBus("missing")), params("declare", "none"))
	_, err := p.ch.QueueDeclare("orders", true, false, false, false, nil)
	require.NoError(t, err)

	for name, tc := range map[string]struct {
		broker        brokers.Broker
		topic         string
		exchange, key string
	}{
		"queue":    {queues, "missing", "", "missing"},
		"key":      {bus, "invoice.created", "easyweek.bus", "invoice.created"},
		"exchange": {missing, "invoice.created", "missing.bus", "invoice.created"},
	} {
		err := tc.broker.Publisher().Publish(tc.topic, newMessage("x"))
		require.ErrorIs(t, err, brokers.ErrUnroutable, name)
		var unroutable *rabbitmq.UnroutableError
		require.ErrorAs(t, err, &unroutable, name)
		require.Equal(t, tc.exchange, unroutable.Exchange, name)
		require.Equal(t, tc.key, unroutable.RoutingKey, name)
		require.ErrorContains(t, err, strconv.Quote(tc.key))
	}

	// 64 callers, half of them without a destination: each gets its own result.
	var group sync.WaitGroup
	for i := range 64 {
		group.Go(func() {
			for n := range 20 {
				topic := "orders"
				if i%2 == 1 {
					topic = "missing" + strconv.Itoa(n)
				}
				err := queues.Publisher().Publish(topic, message.NewMessage("same id", []byte("same body")))
				if topic == "orders" {
					if err != nil {
						t.Errorf("publish to orders: %v", err)
					}
				} else if want := fmt.Sprintf("%q", topic); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("publish to %s: want an error that names it, got %v", topic, err)
				}
			}
		})
	}
	group.Wait()
	require.Equal(t, 640, p.depth("orders"))
}

// A retry without a queue is an error, and the message that failed stays in its queue.
func TestReschedule_ToAMissingQueueAcksNothing(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	for queue, args := range map[string]amqp.Table{"orders": nil, "orders_retry": retryArgs(1000), "orders_dlq": nil} {
		_, err := p.ch.QueueDeclare(queue, true, false, false, false, args)
		require.NoError(t, err)
	}
	b := openBroker(t, url, naming(brokers.Laravel()), params("declare", "none"), delays(time.Second))
	s := serve(t, b, "orders", middleware.Config{
		MaxAttempts: 3, Backoff: middleware.Constant(time.Second),
	}, fails)
	_, err := p.ch.QueueDelete("orders_retry", false, false, false)
	require.NoError(t, err)
	p.send("", "orders", amqp.Publishing{MessageId: "m", Body: []byte("x")})
	require.Equal(t, 1, s.next().attempt.Number)
	require.Equal(t, 1, s.next().attempt.Number, "requeued, its attempt not counted")
	s.stop()
	require.NoError(t, b.Close())
	require.Equal(t, "m", p.next("orders").MessageId)
}

// A batch waits once for its confirms, keeps the order, and may be much larger than the window of one channel.
func TestPublish_BatchIsConfirmedAsAWhole(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.Laravel()), func(c *brokers.Config) { c.PublishTimeout = patience })
	_, err := p.ch.QueueDeclare("orders", true, false, false, false, nil)
	require.NoError(t, err)

	var group sync.WaitGroup
	for caller := range 4 { // together they need more slots than exist
		group.Go(func() {
			batch := make([]*message.Message, 3000)
			for i := range batch {
				batch[i] = message.NewMessage(fmt.Sprintf("%d/%d", caller, i), []byte("x"))
			}
			if err := b.Publisher().Publish("orders", batch...); err != nil {
				t.Errorf("publish: %v", err)
			}
		})
	}
	group.Wait()
	require.Equal(t, 12_000, p.depth("orders"))

	next := map[string]int{}
	deliveries, err := p.ch.Consume("orders", "", true, false, false, false, nil)
	require.NoError(t, err)
	for range 12_000 {
		d := <-deliveries
		caller, number, _ := strings.Cut(d.MessageId, "/")
		require.Equal(t, strconv.Itoa(next[caller]), number)
		next[caller]++
	}
}

// A full queue refuses messages, and the error names the queue.
func TestPublish_ToAFullQueueIsRefused(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	_, err := p.ch.QueueDeclare("full", true, false, false, false,
		amqp.Table{"x-max-length": int32(1), "x-overflow": "reject-publish"})
	require.NoError(t, err)
	b := openBroker(t, url, naming(brokers.Laravel()))
	require.NoError(t, b.Publisher().Publish("full", newMessage("1")))
	err = b.Publisher().Publish("full", newMessage("2"))
	require.ErrorIs(t, err, rabbitmq.ErrRefused)
	require.ErrorContains(t, err, `"full"`)
}

// The broker may take less than max-message says. It ends the channel then, on which other callers have messages in
// flight: these used to fail too, with an error about a size that is not theirs.
func TestPublish_TooLargeForTheBrokerFailsAlone(t *testing.T) {
	t.Parallel()
	r := borrowSecond(t, true)
	largest := func(ctx context.Context, size string) {
		_, err := r.Ctl(ctx, "eval", "application:set_env(rabbit, max_message_size, "+size+
			"), persistent_term:put(max_message_size, "+size+").")
		require.NoError(t, err)
	}
	largest(t.Context(), "100000")
	t.Cleanup(func() { largest(context.Background(), "134217728") })
	url := r.VHost(t)
	p := dialPlain(t, url)
	_, err := p.ch.QueueDeclare("orders", true, false, false, false, nil)
	require.NoError(t, err)
	b := openBroker(t, url, naming(brokers.Laravel()))
	const callers, each = 16, 50
	spread(callers, callers*each, func(i int) {
		size, want := 10, error(nil)
		if i%each == 0 {
			size, want = 100_001+i, brokers.ErrTooLarge
		}
		err := b.Publisher().Publish("orders", message.NewMessage(strconv.Itoa(i), make([]byte, size)))
		if !errors.Is(err, want) {
			t.Errorf("message %d of %d bytes: %v", i, size, err)
		}
	})
	require.GreaterOrEqual(t, p.depth("orders"), callers*(each-1))
}

// A fault that may pass, and does not within the timeout, is named: channels that the URL, or the server, does not
// allow looked like a server that answers late.
func TestPublish_ATimeoutNamesItsCause(t *testing.T) {
	t.Parallel()
	b := openBroker(t, services.SharedRabbitMQ(t).VHost(t)+"?channel_max=1", naming(brokers.Laravel()),
		func(c *brokers.Config) { c.PublishTimeout = 2 * time.Second })
	err := b.Publisher().Publish("orders", newMessage("x"))
	require.ErrorIs(t, err, brokers.ErrUnroutable, "it opens the one channel")
	err = b.Reschedule(t.Context(), envelope.Origin{Topic: "orders", Consumer: "orders"}, newMessage("x"), 0)
	require.ErrorIs(t, err, rabbitmq.ErrUnconfirmed)
	require.ErrorIs(t, err, amqp.ErrChannelMax)
}

// A missing permission is the error, not a timeout after it was tried again and again.
func TestPublish_WithoutPermissionIsRefused(t *testing.T) {
	t.Parallel()
	r := services.SharedRabbitMQ(t)
	url := r.VHost(t)
	p := dialPlain(t, url)
	_, err := p.ch.QueueDeclare("orders", true, false, false, false, nil)
	require.NoError(t, err)
	b := openBroker(t, restricted(t, r, url, map[string]string{"write": "^$"}), naming(brokers.Laravel()))
	require.ErrorContains(t, b.Publisher().Publish("orders", newMessage("x")), "ACCESS_REFUSED")
}

// A channel of RabbitMQ 3.10 continues to refuse publications after an operator has lifted the limit of a queue:
// retries were refused, and their consumer stood still, until the process was restarted.
func TestPublish_ALiftedLimitIsNoticed(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(testing.TB) *services.Rabbit{
		"3": services.SharedRabbitMQ, "4": services.SharedRabbitMQ4,
	} {
		t.Run("on RabbitMQ "+name, func(t *testing.T) {
			t.Parallel()
			r := of(t)
			url := r.VHost(t)
			_, err := dialPlain(t, url).ch.QueueDeclare("orders", true, false, false, false,
				amqp.Table{"x-queue-type": "quorum"})
			require.NoError(t, err)
			b := openBroker(t, url, naming(brokers.Laravel()))
			publish := func() error { return b.Publisher().Publish("orders", newMessage("x")) }
			limit := map[string]any{"max-length": 1, "overflow": "reject-publish"}
			require.NoError(t, r.Management().SetPolicy(t.Context(), vhostOf(t, url), "limit", ".*", limit))
			await.True(t, func() bool { return errors.Is(publish(), rabbitmq.ErrRefused) })
			err = r.Management().Do(t.Context(), http.MethodDelete, nil, nil, "policies", vhostOf(t, url), "limit")
			require.NoError(t, err)
			await.True(t, func() bool { return publish() == nil })
			await.True(t, func() bool { return b.Stats().Channels == 1 }, "the other channel is closed")
		})
	}
}

// The number of connections and channels is bounded, whatever happens, and all are closed in the end.
func TestStats_AreBounded(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	b := openBroker(t, url, params("grid", "false"))
	const concurrency = 16
	s := serve(t, b, "orders", middleware.Laravel(1), func(*message.Message) error { return nil },
		brokers.WithConcurrency(concurrency))
	var group sync.WaitGroup
	for range 64 {
		group.Go(func() {
			for range 20 {
				if err := b.Publisher().Publish("orders", newMessage("x")); err != nil {
					t.Errorf("publish: %v", err)
				}
				if stats := b.Stats(); stats.Connections > 3 || stats.Channels > 4+concurrency {
					t.Errorf("too many: %+v", stats)
				}
			}
		})
	}
	group.Wait()
	for range 64 * 20 {
		s.next()
	}
	require.LessOrEqual(t, b.Stats().Channels, 4)
	require.NoError(t, b.Close())
	require.Equal(t, rabbitmq.Stats{}, b.Stats())
}

// A header that AMQP forbids is refused before it can close the connection and fail all other publications on it.
func TestPublish_HostileHeadersKeepTheConnection(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	_, err := p.ch.QueueDeclare("orders", true, false, false, false, nil)
	require.NoError(t, err)
	b := openBroker(t, url, naming(brokers.Laravel()))
	require.NoError(t, b.Publisher().Publish("orders", newMessage("before")))
	before := b.Stats()

	for _, change := range []func(m *message.Message){
		func(m *message.Message) { m.Metadata["big"] = strings.Repeat("x", 200<<10) },
		func(m *message.Message) { m.Metadata[strings.Repeat("k", 300)] = "long name" },
		func(m *message.Message) { m.UUID = strings.Repeat("u", 300) },
		func(m *message.Message) { m.Metadata[envelope.KeyAMQPType] = strings.Repeat("t", 300) },
	} {
		m := newMessage("x")
		change(m)
		require.ErrorIs(t, b.Publisher().Publish("orders", m), brokers.ErrTooLarge)
	}
	fits := newMessage("fits")
	fits.Metadata["big"] = strings.Repeat("x", 122<<10) // 127 would leave no room for what a retry adds
	require.NoError(t, b.Publisher().Publish("orders", fits))
	require.Equal(t, before, b.Stats(), "the connection of the start")
	require.Equal(t, 2, p.depth("orders"))
}
