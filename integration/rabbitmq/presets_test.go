package rabbitmq_test

import (
	"encoding/json"
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

// System A: orders -> orders_retry -> orders_dlq, with five runs, and the JSON body has retry_count 5 at the end.
func TestPresetA_FromAForeignBodyToTheDeadLetterQueue(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.Laravel()))
	s := serve(t, b, "orders", middleware.Laravel(5), fails)

	const body = `{"message_id":"0199d9a5-5f9c-7cc4-ae4f-5fbb0d9bd3a1","timestamp":"2026-02-28T22:53:42+00:00","version":"1.0",` +
		`"source":"checkout","queue":"orders","data":{"id":9007199254740993},"metadata":{"priority":"high","correlation_id":"abc-123"},` +
		`"error":null,"retry_count":0}`
	// as Laravel does, no Watermill header
	p.send("", "orders", amqp.Publishing{Body: []byte(body), ContentType: "application/json"})

	runs := make([]run, 5)
	for i := range runs {
		runs[i] = s.next()
		require.Equal(t, i+1, runs[i].attempt.Number)
		require.Equal(t, "0199d9a5-5f9c-7cc4-ae4f-5fbb0d9bd3a1", runs[i].attempt.MessageID, "A7")
		if i > 0 {
			require.Contains(t, runs[i].message.Metadata["x-death"], `"queue":"orders_retry"`,
				"A3: every retry goes through the retry queue")
		}
	}
	d := p.next("orders_dlq")
	var dead struct {
		MessageID  string          `json:"message_id"`
		Timestamp  string          `json:"timestamp"`
		Queue      string          `json:"queue"`
		Data       json.RawMessage `json:"data"`
		Error      envelope.Error  `json:"error"`
		RetryCount int             `json:"retry_count"`
	}
	require.NoError(t, json.Unmarshal(d.Body, &dead))
	require.Equal(t, 5, dead.RetryCount)
	require.Equal(t, errDown.Error(), dead.Error.Message)
	require.Equal(t, "orders", dead.Queue, "A17: the original destination")
	require.Equal(t, "2026-02-28T22:53:42+00:00", dead.Timestamp)
	require.JSONEq(t, `{"id":9007199254740993}`, string(dead.Data))
	require.Contains(t, string(dead.Data), "9007199254740993")
	require.Equal(t, "application/json", d.ContentType)
	require.Equal(t, amqp.Persistent, d.DeliveryMode)
	require.Zero(t, p.depth("orders"))
	require.Zero(t, p.depth("orders_retry"))
}

// A server with a different naming scheme redrives to the destination that the consumer's broker recorded: the single
// retry queue, from which messages expire, or the consumer's queue, where they wait until it is read.
func TestPresetA_RedriveToTheRecordedPlace(t *testing.T) {
	t.Parallel()
	type options = []func(*brokers.Config)
	one, named := options{naming(brokers.Laravel())}, options{naming(brokers.Laravel()), delays(time.Second)}
	for name, test := range map[string]struct {
		to               string
		consumer, server options
	}{
		"one retry queue":                         {"orders_retry", one, nil},
		"named delays":                            {"orders", named, nil},
		"named delays, a server with one queue":   {"orders", named, one},
		"one retry queue, a server with delays":   {"orders_retry", one, named},
		"one retry queue, a server with the same": {"orders_retry", one, one},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := services.SharedRabbitMQ(t).VHost(t)
			p := dialPlain(t, url)
			s := serve(t, openBroker(t, url, test.consumer...), "orders", middleware.Config{},
				func(*message.Message) error { return nil })
			p.send("", "orders", amqp.Publishing{Body: []byte("first")})
			origin := s.next().origin
			require.Equal(t, test.to, origin.RedriveTo)

			server := openBroker(t, url, test.server...)
			redrive := func(text string) {
				require.NoError(t, server.Reschedule(envelope.WithExistingOnly(t.Context()), origin, newMessage(text), 0))
			}
			redrive("again")
			again := s.next()
			require.Equal(t, "again", string(again.message.Payload))
			if test.to != "orders" {
				require.Equal(t, test.to, diedIn(t, again.message))
			}
			require.Zero(t, p.depth(test.to))
			require.Empty(t, s.runs, "once")

			s.stop()
			redrive("without a reader")
			waiting := p.next("orders")
			require.Equal(t, "without a reader", string(waiting.Body))
			require.Empty(t, waiting.Expiration, "it waits for its consumer without a limit")
		})
	}
}

// System B as specified: first delivery after 10 s, retries 10, 20 and 40 s later, all through the one delayed queue of
// the event type, and then the DLX.
func TestPresetB_TimelineAndNames(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.DelayedBackoff()), delays(10*time.Second, 20*time.Second, 40*time.Second),
		params("grid", "false"))
	s := serve(t, b, "order-reminder", middleware.DelayedBackoff(3, time.Minute), fails)
	_, err := p.ch.QueueDeclare("audit", true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, p.ch.QueueBind("audit", "", "order-reminder-dlx", false, nil)) // another consumer reads from the DLX

	m := newMessage(`{"type":"OrderReminderEvent"}`)
	envelope.SetDelay(m, 10*time.Second)
	published := time.Now()
	require.NoError(t, b.Publisher().Publish("order-reminder", m))
	require.Equal(t, 1, p.depth("order-reminder-delayed-queue"), "B8, B11: it is visible while it waits")

	runs := s.schedule(0, 10*time.Second, 30*time.Second, 70*time.Second)
	require.GreaterOrEqual(t, runs[0].at.Sub(published), 10*time.Second, "B1")
	for i, r := range runs {
		require.Equal(t, "10000", r.message.Metadata["x-original-delay"], "B2, B4")
		require.Equal(t, b3[i], diedIn(t, r.message), "B3, B8: the queue that it waited in")
	}
	d := p.next("order-reminder-dlq")
	require.Equal(t, int32(4), d.Headers["x-retry-count"])
	require.Equal(t, int32(10_000), d.Headers["x-original-delay"], "a number, as B's consumers read it")
	require.Equal(t, "order-reminder-dlx", d.Exchange, "B7")
	require.Equal(t, d.MessageId, p.next("audit").MessageId)
}

// b3 returns the queues in which B's runs have waited.
var b3 = []string{
	"order-reminder-delayed-queue", "order-reminder-delayed-queue", "order-reminder-delayed-queue",
	"order-reminder-delayed-queue",
}

// diedIn returns the queue from which the broker last dead-lettered a message.
func diedIn(t *testing.T, m *message.Message) string {
	t.Helper()
	var deaths []struct {
		Queue string `json:"queue"`
	}
	require.NoError(t, json.Unmarshal([]byte(m.Metadata["x-death"]), &deaths), m.Metadata["x-death"])
	require.NotEmpty(t, deaths)
	return deaths[0].Queue
}

// A validation error goes straight to the DLX.
func TestPresetB_PermanentErrorsAreNotRetried(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.DelayedBackoff()), params("grid", "false"), delays(time.Second))
	s := serve(t, b, "order-reminder", middleware.DelayedBackoff(3, time.Second), func(*message.Message) error {
		return middleware.Permanent(errDown)
	})
	require.NoError(t, b.Publisher().Publish("order-reminder", newMessage("{}")))
	d := p.next("order-reminder-dlq")
	require.Equal(t, "permanent", d.Headers["x-dead-letter-reason"])
	s.next()
	require.Empty(t, s.runs)
}

// System D: the exact timeline of 0, 1 and 6 s, on a bus where a foreign producer publishes, with another service that
// gets the event once.
func TestPresetD_TimelineNamesAndHeaders(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	scheme := naming(brokers.ServiceBus("easyweek"))
	steps := []time.Duration{time.Second, 5 * time.Second, 60 * time.Second}
	invoices := openBroker(t, url, scheme, group("invoice-service"), delays(steps...))
	mails := openBroker(t, url, scheme, group("mail-service"), delays(steps...))
	s := serve(t, invoices, "invoice.*", middleware.ServiceBus(3, steps...), fails)
	other := serve(t, mails, "#", middleware.ServiceBus(3, steps...), func(*message.Message) error { return nil })

	nested := amqp.Table{"tenant": int64(7), "tags": []any{"a", int32(1)}}
	p.send("easyweek.bus", "invoice.created", amqp.Publishing{
		MessageId: "inv-1", Type: "invoice.created", AppId: "php", CorrelationId: "corr", Body: []byte(`{"invoice":1}`),
		Headers: amqp.Table{"x-retry-count": int32(0), "nested": nested, "flag": true, "CC": []any{}},
	})

	runs := s.schedule(0, time.Second, 6*time.Second)
	for i, r := range runs {
		require.Equal(t, []middleware.Tag{middleware.TagFirst, middleware.TagRetry, middleware.TagLast}[i], r.attempt.Tag,
			"D21")
		require.Equal(t, "invoice.created", r.origin.RoutingKey, "D18: the routing key is kept")
		require.Equal(t, "easyweek.bus", r.origin.Exchange)
		require.Equal(t, "easyweek.invoice-service", r.origin.Consumer, "D2")
		require.Equal(t, "invoice.created", r.message.Metadata[envelope.KeyAMQPType])
		e, err := envelope.FromMessage(r.message)
		require.NoError(t, err)
		require.Equal(t, "invoice.created", e.Event())
		require.JSONEq(t, `{"tenant":7,"tags":["a",1]}`, r.message.Metadata["nested"])
	}

	d := p.next("easyweek.invoice-service.failed")
	require.Empty(t, d.Exchange, "D25: straight to the queue")
	require.Equal(t, "easyweek.invoice-service.failed", d.RoutingKey)
	require.Equal(t, int32(3), d.Headers["x-retry-count"], "D16, D25: an integer")
	require.NotContains(t, d.Headers, "x-delay", "D25")
	require.Equal(t, errDown.Error(), d.Headers["consumer_error"], "D25")
	require.Equal(t, nested, d.Headers["nested"])
	require.Equal(t, true, d.Headers["flag"])
	require.NotContains(t, d.Headers, "x-death")
	require.Equal(t, "inv-1", d.MessageId)
	require.Equal(t, "invoice.created", d.Type)
	require.Equal(t, "php", d.AppId)
	require.Equal(t, "corr", d.CorrelationId)
	require.Equal(t, `{"invoice":1}`, string(d.Body))

	require.Equal(t, 1, other.next().attempt.Number)
	require.Empty(t, other.runs, "D9: one service's retries never reach the other")
}

// A message that a PHP consumer has already tried twice has one of three attempts left.
func TestPresetD_ContinuesWhereAForeignConsumerStopped(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.ServiceBus("easyweek")), group("invoice-service"), delays(time.Second),
		params("grid", "false"))
	s := serve(t, b, "#", middleware.ServiceBus(3, time.Second), fails)
	p.send("easyweek.bus", "user.created", amqp.Publishing{
		Headers: amqp.Table{"x-retry-count": int64(2)},
		Body:    []byte("{}"),
	})
	r := s.next()
	require.Equal(t, 3, r.attempt.Number)
	require.True(t, r.attempt.IsLast())
	require.Equal(t, int64(3), p.next("easyweek.invoice-service.failed").Headers["x-retry-count"],
		"the type that it arrived with")
}

// System E as specified: a time to live of 5 s, runs at 0, 5, 10 and 15 s, then limbo.
func TestPresetE_CyclesThenLimbo(t *testing.T) {
	t.Parallel()
	const queue = "sgp.fechamento.reabertura.notificacao.dre"
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	b := openBroker(t, url, naming(brokers.TTLCycle("sme.sgp.workers"))) // 5 s is the default
	s := serve(t, b, queue, middleware.TTLCycle(3, 5*time.Second), fails)
	p.send("sme.sgp.workers", queue, amqp.Publishing{Body: []byte("dre"), MessageId: "e-1"})

	for i, r := range s.schedule(0, 5*time.Second, 10*time.Second, 15*time.Second) {
		if i > 0 {
			require.Contains(t, r.message.Metadata["x-death"], `"queue":"`+queue+`.deadletter"`, "E2")
		}
	}
	d := p.next(queue + ".limbu")
	require.Equal(t, "e-1", d.MessageId)
	require.Equal(t, "4", d.Headers["x-retry-count"], "E4: three cycles, four runs")
	require.Zero(t, p.depth(queue+".deadletter"))
}

// System E on existing classic queues with the original names, with an old consumer alongside ours that still rejects
// messages: its cycles count.
func TestPresetE_AdoptsExistingQueuesAndTheirCycles(t *testing.T) {
	t.Parallel()
	const queue, bus = "dre", "sme.sgp.workers"
	url := services.SharedRabbitMQ(t).VHost(t)
	p := dialPlain(t, url)
	for _, e := range []string{bus, bus + ".deadletter"} {
		require.NoError(t, p.ch.ExchangeDeclare(e, "direct", true, false, false, false, nil))
	}
	for name, args := range map[string]amqp.Table{
		queue:                 {"x-dead-letter-exchange": bus + ".deadletter"},
		queue + ".deadletter": {"x-dead-letter-exchange": bus, "x-message-ttl": int32(500)},
		queue + ".limbu":      nil,
	} {
		_, err := p.ch.QueueDeclare(name, true, false, false, false, args)
		require.NoError(t, err)
	}
	require.NoError(t, p.ch.QueueBind(queue, queue, bus, false, nil))
	require.NoError(t, p.ch.QueueBind(queue+".deadletter", queue, bus+".deadletter", false, nil))

	reject := func() { // one cycle of the old consumer
		var d amqp.Delivery
		await.True(t, func() (ok bool) {
			var err error
			d, ok, err = p.ch.Get(queue, false)
			require.NoError(t, err)
			return ok
		})
		require.NoError(t, d.Reject(false))
	}
	p.send(bus, queue, amqp.Publishing{Body: []byte("dre"), MessageId: "e-2"})
	reject()

	scheme := brokers.TTLCycle(bus)
	scheme.Dead = "{queue}.limbu"
	b := openBroker(t, url, naming(scheme),
		params("retry-ttl", "500ms", "declare", "none", "queue-type", "classic", "retry-queue-type", "classic"))
	s := serve(t, b, queue, middleware.TTLCycle(3, 500*time.Millisecond), fails)
	require.Equal(t, 2, s.next().attempt.Number)
	s.stop()
	reject() // what ours has published, which RabbitMQ has not counted yet
	s = serve(t, b, queue, middleware.TTLCycle(3, 500*time.Millisecond), fails)
	require.Equal(t, 4, s.next().attempt.Number)
	d := p.next(queue + ".limbu")
	require.Equal(t, "e-2", d.MessageId)
	require.Equal(t, "4", d.Headers["x-retry-count"])
	require.NotContains(t, d.Headers, "x-death")
}
