package rabbitmq_test

import (
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

// Each preset declares the queues of its system, with the arguments that the five systems specify.
func TestPresets_QueuesOnTheBroker(t *testing.T) {
	t.Parallel()
	limbu := brokers.TTLCycle("sme.sgp.workers")
	limbu.Dead = "{queue}.limbu"
	type arguments map[string]any
	for name, tc := range map[string]struct {
		naming brokers.NameScheme
		group  string
		delays []time.Duration
		topic  string
		queues map[string]arguments
	}{
		"A": {
			naming: brokers.Laravel(), topic: "orders",
			queues: map[string]arguments{
				"orders":       {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders_dlq"},
				"orders_retry": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "orders"},
				"orders_dlq":   {"x-dead-letter-exchange": nil, "x-message-ttl": nil},
			},
		},
		"B": {
			naming: brokers.DelayedBackoff(), topic: "order-reminder",
			delays: []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second},
			queues: map[string]arguments{
				"order-reminder": {"x-dead-letter-exchange": "order-reminder-dlx"},
				"order-reminder-delayed-queue": {
					"x-message-ttl": nil, "x-dead-letter-exchange": "",
					"x-dead-letter-routing-key": "order-reminder",
				},
				"order-reminder-dlq": {"x-dead-letter-exchange": nil, "x-message-ttl": nil},
			},
		},
		"D": {
			naming: brokers.ServiceBus("easyweek"), group: "invoice-service", topic: "invoice.*",
			delays: []time.Duration{time.Second, 5 * time.Second, time.Minute},
			queues: map[string]arguments{
				"easyweek.invoice-service": {"x-dead-letter-exchange": "easyweek.invoice-service.failed"},
				"easyweek.invoice-service.retry.1000": {
					"x-message-ttl":             1000.0,
					"x-dead-letter-routing-key": "easyweek.invoice-service",
				},
				"easyweek.invoice-service.retry.5000": {
					"x-message-ttl":             5000.0,
					"x-dead-letter-routing-key": "easyweek.invoice-service",
				},
				"easyweek.invoice-service.retry.60000": {
					"x-message-ttl":             60_000.0,
					"x-dead-letter-routing-key": "easyweek.invoice-service",
				},
				"easyweek.invoice-service.failed": {"x-dead-letter-exchange": nil, "x-message-ttl": nil},
			},
		},
		"E": {
			naming: limbu, topic: "sgp.fechamento.reabertura.notificacao.dre",
			queues: map[string]arguments{
				"sgp.fechamento.reabertura.notificacao.dre": {"x-dead-letter-exchange": "sme.sgp.workers.deadletter"},
				"sgp.fechamento.reabertura.notificacao.dre.deadletter": {
					"x-message-ttl": 5000.0, "x-dead-letter-exchange": "sme.sgp.workers",
				},
				"sgp.fechamento.reabertura.notificacao.dre.limbu": {"x-dead-letter-exchange": nil, "x-message-ttl": nil},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := services.SharedRabbitMQ(t).VHost(t)
			b := openBroker(t, url, naming(tc.naming), group(tc.group), delays(tc.delays...), params("grid", "false"))
			require.NoError(t, b.Subscriber().(message.SubscribeInitializer).SubscribeInitialize(tc.topic))
			there := queues(t, url)
			require.Len(t, there, len(tc.queues), "exactly these queues")
			for queue, want := range tc.queues {
				require.Contains(t, there, queue)
				require.True(t, there[queue].Durable, "D6")
				for argument, value := range want {
					require.Equal(t, value, there[queue].Arguments[argument], "%s of %s", argument, queue)
				}
			}
		})
	}
}

// A message that is rejected, by the broker's own tools or by a consumer without Redrive, is routed by the preset: D's
// to .failed, and E's through the delay queue back to the main queue.
func TestPresets_ARejectedMessage(t *testing.T) {
	t.Parallel()
	reject := func(t *testing.T, p *plain, queue string) {
		t.Helper()
		await.True(t, func() bool {
			d, ok, err := p.ch.Get(queue, false)
			return err == nil && ok && d.Reject(false) == nil
		})
	}
	t.Run("D", func(t *testing.T) {
		t.Parallel()
		url := services.SharedRabbitMQ(t).VHost(t)
		p := dialPlain(t, url)
		b := openBroker(t, url, naming(brokers.ServiceBus("easyweek")), group("invoice-service"), params("grid", "false"))
		require.NoError(t, b.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("invoice.*"))
		p.send("easyweek.bus", "invoice.created", amqp.Publishing{MessageId: "m", Body: []byte("x")})
		reject(t, p, "easyweek.invoice-service")
		require.Equal(t, "m", p.next("easyweek.invoice-service.failed").MessageId)
	})
	t.Run("E", func(t *testing.T) {
		t.Parallel()
		url := services.SharedRabbitMQ(t).VHost(t)
		p := dialPlain(t, url)
		b := openBroker(t, url, naming(brokers.TTLCycle("sme.sgp.workers")), params("retry-ttl", "300ms"))
		require.NoError(t, b.Subscriber().(message.SubscribeInitializer).SubscribeInitialize("dre"))
		p.send("sme.sgp.workers", "dre", amqp.Publishing{MessageId: "m", Body: []byte("x")})
		began := time.Now() // before it can be rejected
		reject(t, p, "dre")
		require.Equal(t, "m", p.next("dre").MessageId)
		require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
	})
}

// A first-delivery delay on the bus reaches every service once, each with its own copy.
func TestPresets_DelayedEventReachesEveryService(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	scheme := naming(brokers.ServiceBus("easyweek"))
	var all []*service
	for pattern, name := range map[string]string{
		"invoice.*": "invoice-service", "#": "audit-service",
		"*.created": "mail-service",
	} {
		b := openBroker(t, url, scheme, group(name), delays(500*time.Millisecond), params("grid", "false"))
		all = append(all, serve(t, b, pattern, middleware.ServiceBus(1), func(*message.Message) error { return nil }))
	}
	other := openBroker(t, url, scheme, group("user-service"), delays(500*time.Millisecond), params("grid", "false"))
	bystander := serve(t, other, "user.#", middleware.ServiceBus(1), fails)

	m := newMessage("x")
	m.Metadata["x-delay"] = "500"
	published := time.Now()
	require.NoError(t, other.Publisher().Publish("invoice.created", m))
	for _, s := range all {
		r := s.next()
		require.GreaterOrEqual(t, r.at.Sub(published), 500*time.Millisecond)
		require.Equal(t, "500", r.message.Metadata["x-original-delay"], "B4")
		require.Equal(t, "invoice.created", r.origin.RoutingKey)
	}
	for _, s := range all {
		require.Empty(t, s.runs)
	}
	require.Empty(t, bystander.runs, "D1: its pattern does not match")
	require.Zero(t, p.depth("easyweek.user-service"))
}
