package rabbitmq_test

import (
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/services"
	"github.com/redrive-go/redrive/middleware"
)

// Without the plugin, opening fails with an error that names the plugin and the remedy, and with hardly any load on the
// broker.
func TestPlugin_Missing(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	_, err := brokers.Open(t.Context(), url+"?transport=plugin&naming=service-bus&project=easyweek&group=invoice-service")
	require.Error(t, err)
	for _, text := range []string{
		"x-delayed-message", "rabbitmq-plugins enable rabbitmq_delayed_message_exchange", "4.3", "x-transport=ttl",
	} {
		require.ErrorContains(t, err, text)
	}
	require.NotContains(t, err.Error(), "guest:guest")

	b, err := brokers.Open(t.Context(), url+"?transport=ttl&naming=service-bus&project=easyweek&group=invoice-service")
	require.NoError(t, err)
	require.NoError(t, b.Close())
}

// The plugin is in no package, so this broker gets an exchange type of the same name that is a topic exchange and
// delivers at once: names, bindings and headers are tested, but not the delay.
func TestPlugin_NamesAndHeaders(t *testing.T) {
	t.Parallel()
	r := borrowSecond(t, false)
	url := r.VHost(t)
	_, err := r.Ctl(t.Context(), "eval", `rabbit_registry:register(exchange, <<"x-delayed-message">>, rabbit_exchange_type_topic).`)
	require.NoError(t, err)
	openBroker(t, restricted(t, r, url, map[string]string{"configure": "^$"}), naming(brokers.ServiceBus("easyweek")),
		params("transport", "plugin", "declare", "none"))
	b := openBroker(t, url, naming(brokers.ServiceBus("easyweek")), group("invoice-service"),
		params("transport", "plugin"))
	s := serve(t, b, "invoice.*", middleware.ServiceBus(3, time.Second, 5*time.Second, time.Minute), fails)
	p := dialPlain(t, url)
	_, err = p.ch.QueueDeclare("spy", true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, p.ch.QueueBind("spy", "#", "easyweek.invoice-service", false, nil),
		"D4: an exchange of the queue's name")

	p.send("easyweek.bus", "invoice.created",
		amqp.Publishing{
			MessageId: "inv-1", Type: "invoice.created", Body: []byte("{}"),
			Headers: amqp.Table{"tenant": int64(7)},
		})
	for i, delay := range []int64{1000, 5000} {
		require.Equal(t, i+1, s.next().attempt.Number)
		d := p.next("spy")
		require.Equal(t, "invoice.created", d.RoutingKey, "D18: the original routing key")
		require.EqualValues(t, delay, d.Headers["x-delay"], "D19")
		require.IsType(t, int64(0), d.Headers["x-delay"], "the plugin closes the connection if it is a string")
		require.EqualValues(t, i+1, d.Headers["x-retry-count"], "D16")
		require.IsType(t, int32(0), d.Headers["x-retry-count"])
		require.Equal(t, int64(7), d.Headers["tenant"])
		require.Equal(t, amqp.Persistent, d.DeliveryMode, "D6")
		require.Equal(t, "inv-1", d.MessageId)
	}
	last := s.next()
	require.Equal(t, "invoice.created", last.origin.RoutingKey)
	require.True(t, last.attempt.IsLast())
	d := p.next("easyweek.invoice-service.failed")
	require.NotContains(t, d.Headers, "x-delay", "D25")
	require.EqualValues(t, 3, d.Headers["x-retry-count"])
	require.Zero(t, p.depth("spy"))
}

// This test needs the real plugin, which is in no package registry: build the tag that fits the broker as its README
// describes, unpack it into a directory, and set TEST_DELAYED_PLUGIN_DIR to that directory. It passed with 3.10.2,
// compiled for RabbitMQ 3.10.8, on 2026-11-21.
func TestPlugin_Delays(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("TEST_DELAYED_PLUGIN_DIR")
	if dir == "" {
		t.Skip("TEST_DELAYED_PLUGIN_DIR does not name a directory with rabbitmq_delayed_message_exchange")
	}
	r := services.RabbitMQ(t, services.RabbitConfig{
		Plugins:    []string{"rabbitmq_delayed_message_exchange"},
		PluginsDir: dir,
	})
	scheme, plugin := naming(brokers.ServiceBus("easyweek")), params("transport", "plugin")
	invoices := openBroker(t, r.URL, scheme, group("invoice-service"), plugin)
	mails := openBroker(t, r.URL, scheme, group("mail-service"), plugin)
	s := serve(t, invoices, "invoice.*", middleware.ServiceBus(3, time.Second, 5*time.Second, time.Minute), fails)
	other := serve(t, mails, "#", middleware.ServiceBus(1), func(*message.Message) error { return nil })
	p := dialPlain(t, r.URL)

	p.send("easyweek.bus", "invoice.created",
		amqp.Publishing{MessageId: "inv-1", Body: []byte("{}"), Headers: amqp.Table{"tenant": int64(7)}})
	for _, run := range s.schedule(0, time.Second, 6*time.Second) {
		require.Equal(t, "invoice.created", run.origin.RoutingKey, "D18")
		require.Equal(t, "7", run.message.Metadata["tenant"])
	}
	d := p.next("easyweek.invoice-service.failed")
	require.NotContains(t, d.Headers, "x-delay", "D25")
	require.EqualValues(t, 3, d.Headers["x-retry-count"])
	require.Equal(t, "inv-1", other.next().message.UUID)
	require.Empty(t, other.runs, "D9: retries reach one service only")

	// A short first-delivery delay does not wait behind a long one, and every service gets its copy.
	published := time.Now()
	for _, delay := range []time.Duration{3 * time.Second, time.Second} {
		m := message.NewMessage(delay.String(), nil)
		envelope.SetDelay(m, delay)
		require.NoError(t, mails.Publisher().Publish("user.created", m))
	}
	for _, delay := range []time.Duration{time.Second, 3 * time.Second} {
		got := other.next()
		require.Equal(t, delay.String(), got.message.UUID)
		require.GreaterOrEqual(t, got.at.Sub(published), delay)
	}
}
