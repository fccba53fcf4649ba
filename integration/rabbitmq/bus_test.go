package rabbitmq_test

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// Of several instances of a service, a busy one holds one message, which is unacked until its handler returns, and the
// others get the rest.
func TestBus_PrefetchOfOneIsTheDefault(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	scheme, billing := naming(brokers.ServiceBus("easyweek")), group("billing")
	open := func() brokers.Broker { return openBroker(t, url, scheme, billing, params("grid", "false")) }
	release := make(chan struct{})
	busyOne := serve(t, open(), "#", middleware.ServiceBus(1), func(*message.Message) error {
		<-release
		return nil
	})
	const n = 20
	for i := range n {
		p.send("easyweek.bus", "order.created", amqp.Publishing{MessageId: strconv.Itoa(i), Body: []byte("{}")})
	}
	busyOne.next()
	vhost, queue := vhostOf(t, url), "easyweek.billing"
	await.True(t, func() bool {
		q, err := services.SharedRabbitMQ(t).Management().Queue(t.Context(), vhost, queue)
		require.NoError(t, err)
		return q.Unacked == 1 && q.Ready == n-1
	}, "the busy instance has one message, and none prefetched")

	idle := serve(t, open(), "#", middleware.ServiceBus(1), func(*message.Message) error { return nil })
	for range n - 1 {
		idle.next()
	}
	require.Empty(t, busyOne.runs)
	close(release)
	await.True(t, func() bool {
		q, err := services.SharedRabbitMQ(t).Management().Queue(t.Context(), vhost, queue)
		return err == nil && q.Messages == 0
	}, "acked")
}

// After a graceful shutdown the broker has no connection of ours.
func TestBus_ShutdownClosesEverything(t *testing.T) {
	t.Parallel()
	r := services.SharedRabbitMQ(t)
	url := r.VHost(t)
	b := openBroker(t, url, naming(brokers.ServiceBus("easyweek")), group("billing"), params("grid", "false"))
	s := serve(t, b, "#", middleware.ServiceBus(1), func(*message.Message) error { return nil })
	require.NoError(t, b.Publisher().Publish("order.created", newMessage("{}")))
	s.next()
	open := func() int {
		return len(connections(t, r, vhostOf(t, url)))
	}
	await.True(t, func() bool { return open() == b.Stats().Connections })
	s.stop()
	require.NoError(t, b.Close())
	await.True(t, func() bool { return open() == 0 })
}

// System events are handled before user code, acked and never retried, whatever their result; debug messages go to
// their own handler.
func TestBus_SystemEventsAndDebugMessages(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.ServiceBus("easyweek")), group("billing"), delays(50*time.Millisecond),
		params("grid", "false"))
	cfg := middleware.ServiceBus(3, 50*time.Millisecond)
	var pings, debugged atomic.Int32
	cfg.SystemEvents = map[string]message.NoPublishHandlerFunc{"system.ping.1": func(*message.Message) error {
		pings.Add(1)
		return errDown
	}}
	cfg.Debug = func(*message.Message) error {
		debugged.Add(1)
		return nil
	}
	s := serve(t, b, "#", cfg, func(*message.Message) error { return nil })
	p.send("easyweek.bus", "system.ping.1", amqp.Publishing{Type: "system.ping.1", Body: []byte("{}")})
	p.send("easyweek.bus", "order.created",
		amqp.Publishing{Type: "order.created", Body: []byte(`{"system":{"is_debug":true}}`)})
	p.send("easyweek.bus", "order.created",
		amqp.Publishing{MessageId: "user's", Type: "order.created", Body: []byte("{}")})
	require.Equal(t, "user's", s.next().message.UUID)
	require.Equal(t, int32(1), pings.Load(), "D14: handled once, before user code")
	require.Equal(t, int32(1), debugged.Load(), "D15")
	s.stop()
	require.NoError(t, b.Close())
	for _, queue := range []string{"easyweek.billing", "easyweek.billing.retry.50", "easyweek.billing.failed"} {
		require.Zero(t, p.depth(queue), "%s: acked, not retried or dead-lettered", queue)
	}
	require.Empty(t, s.runs)
}
