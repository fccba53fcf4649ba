package collector_test

import (
	"encoding/binary"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

func int4(n uint32) string  { return string(binary.BigEndian.AppendUint32(nil, n)) }
func int8b(n uint64) string { return string(binary.BigEndian.AppendUint64(nil, n)) }

// foreign is a dead letter in its system's format, and the expected entry.
type foreign struct {
	source  string
	headers map[string]string // of the dead letter
	own     map[string]string // of the message, which a redrive keeps
	topic   bool              // a redrive publishes to the topic
	want    dlq.Entry
	trace   string
}

// died is when the dead letters of the systems died.
func died() time.Time { return time.Date(2026, 11, 20, 7, 30, 1, 0, time.UTC) }

// systems are the dead letters of each system. The headers are those in its documentation and sources.
func systems() map[string]foreign {
	all := map[string]foreign{}
	for _, some := range []map[string]foreign{rabbitMQ(), springKafka(), otherJava(), dotNet(), ours()} {
		maps.Copy(all, some)
	}
	return all
}

// rabbitMQ has dead letters of RabbitMQ.
func rabbitMQ() map[string]foreign {
	return map[string]foreign{
		"RabbitMQ, rejected": {
			source: "orders.dlq",
			headers: map[string]string{
				"x-death": `[{"count":3,"exchange":"shop","queue":"orders","reason":"rejected","routing-keys":["orders.created"],` +
					`"time":"2026-11-20T07:30:01Z"}]`,
				"x-first-death-exchange": "shop", "x-first-death-queue": "orders", "x-first-death-reason": "rejected",
			},
			own: map[string]string{"tenant": "acme", "amqp-content-type": "application/json"},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "orders", Consumer: "orders", Exchange: "shop", RoutingKey: "orders.created"},
				ErrorMessage: "rejected by a consumer of queue orders", ErrorClass: "rejected", Handler: "orders", Attempts: 3,
				Reason: envelope.ReasonExhausted, DiedAt: died(),
			},
		},
		"RabbitMQ, through a retry queue (E)": {
			source: "reopen.limbu",
			headers: map[string]string{
				"x-death": `[{"count":3,"exchange":"sgp.deadletter","queue":"reopen.deadletter","reason":"expired","routing-keys":["reopen"],` +
					`"time":"2026-11-20T07:30:01Z"},{"count":3,"exchange":"sgp","queue":"reopen","reason":"rejected",` +
					`"routing-keys":["reopen"],"time":"2026-11-20T07:29:56Z"}]`,
			},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "reopen", Consumer: "reopen", Exchange: "sgp", RoutingKey: "reopen"},
				ErrorMessage: "rejected by a consumer of queue reopen", ErrorClass: "rejected", Handler: "reopen", Attempts: 3,
				Reason: envelope.ReasonExhausted, DiedAt: died(),
			},
		},
		"RabbitMQ, expired": {
			source: "dead",
			headers: map[string]string{
				"x-death": `[{"count":1,"exchange":"","queue":"quotes","reason":"expired","original-expiration":"60000",` +
					`"routing-keys":["quotes"],"time":"2026-11-20T07:30:01Z"}]`,
			},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "quotes", Consumer: "quotes", RoutingKey: "quotes"},
				ErrorMessage: "the time to live ended in queue quotes", ErrorClass: "expired", Handler: "quotes",
				Reason: envelope.ReasonExpired, DiedAt: died(),
			},
		},
		"RabbitMQ, expired in a queue whose name says delayed": {
			source: "flights.delayed-dlq",
			headers: map[string]string{
				"x-death": `[{"count":1,"exchange":"","queue":"flights.delayed","reason":"expired",` +
					`"routing-keys":["flights.delayed"],"time":"2026-11-20T07:30:01Z"}]`,
			},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "flights.delayed", Consumer: "flights.delayed", RoutingKey: "flights.delayed"},
				ErrorMessage: "the time to live ended in queue flights.delayed", ErrorClass: "expired",
				Handler: "flights.delayed", Reason: envelope.ReasonExpired, DiedAt: died(),
			},
		},
		"RabbitMQ, expired in a queue whose name says retry, in a queue of several": {
			source: "dead",
			headers: map[string]string{
				"x-death": `[{"count":1,"exchange":"","queue":"retry-service","reason":"expired",` +
					`"routing-keys":["retry-service"],"time":"2026-11-20T07:30:01Z"}]`,
			},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "retry-service", Consumer: "retry-service", RoutingKey: "retry-service"},
				ErrorMessage: "the time to live ended in queue retry-service", ErrorClass: "expired",
				Handler: "retry-service", Reason: envelope.ReasonExpired, DiedAt: died(),
			},
		},
		"RabbitMQ, published by its consumer after a wait (B)": {
			source: "invoice-chase-dlq", topic: true,
			headers: map[string]string{
				"x-death": `[{"count":1,"exchange":"","queue":"invoice-chase-delayed-queue","reason":"expired",` +
					`"original-expiration":"10000","routing-keys":["invoice-chase-delayed-queue"],"time":"2026-11-20T07:30:01Z"}]`,
			},
			own: map[string]string{"x-original-delay": "10000"},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "invoice-chase"}, // and its consumer, on RabbitMQ
				ErrorMessage: "dead-lettered to invoice-chase-dlq without a reason", Reason: envelope.ReasonExhausted,
				DiedAt: died(),
			},
		},
		"RabbitMQ, delivery limit of a quorum queue": {
			source: "dead",
			headers: map[string]string{
				"x-death": `[{"count":1,"exchange":"","queue":"orders","reason":"delivery_limit","routing-keys":["orders"],` +
					`"time":"2026-11-20T07:30:01Z"}]`,
				"x-delivery-count": "20",
			},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "orders", Consumer: "orders", RoutingKey: "orders"},
				ErrorMessage: "the delivery limit of queue orders was reached", ErrorClass: "delivery_limit", Handler: "orders",
				Attempts: 1, Reason: envelope.ReasonExhausted, DiedAt: died(),
			},
		},
		"RabbitMQ, first death only": {
			source: "dead",
			headers: map[string]string{
				"x-first-death-exchange": "shop", "x-first-death-queue": "orders", "x-first-death-reason": "maxlen",
			},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "orders", Consumer: "orders", Exchange: "shop"},
				ErrorMessage: "queue orders was full", ErrorClass: "maxlen", Handler: "orders", Reason: envelope.ReasonExhausted,
			},
		},
	}
}

// springKafka has dead letters of Spring on Kafka.
func springKafka() map[string]foreign {
	return map[string]foreign{
		"Spring for Apache Kafka": {
			source: "orders-dlt", topic: true,
			headers: map[string]string{
				"kafka_dlt-original-topic":          "orders",
				"kafka_dlt-original-partition":      int4(2),
				"kafka_dlt-original-offset":         int8b(1042),
				"kafka_dlt-original-timestamp":      int8b(uint64(died().UnixMilli())),
				"kafka_dlt-original-timestamp-type": "CreateTime",
				"kafka_dlt-original-consumer-group": "billing",
				"kafka_dlt-exception-fqcn":          "org.springframework.kafka.listener.ListenerExecutionFailedException",
				"kafka_dlt-exception-cause-fqcn":    "java.net.SocketTimeoutException",
				"kafka_dlt-exception-message":       "Listener failed; bank: read timed out",
				"kafka_dlt-exception-stacktrace":    "java.net.SocketTimeoutException: read timed out\n\tat Bank.pay(Bank.java:7)",
				"retry_topic-attempts":              int4(4),
				"retry_topic-original-timestamp":    int8b(uint64(died().UnixMilli())),
				"retry_topic-backoff-timestamp":     int8b(uint64(died().UnixMilli())),
			},
			own: map[string]string{"__TypeId__": "shop.Order", "kafka_correlationId": "c-1"},
			want: dlq.Entry{
				Origin: envelope.Origin{
					Topic: "orders", Consumer: "billing", Partition: new(int32(2)), Offset: new(int64(1042)), Position: "2/1042",
					Timestamp: died(),
				},
				ErrorMessage: "Listener failed; bank: read timed out", ErrorClass: "java.net.SocketTimeoutException",
				Handler:  "billing",
				Attempts: 4, Reason: envelope.ReasonExhausted,
			},
			trace: "at Bank.pay",
		},
		"Spring for Apache Kafka, a key that cannot be read": {
			source: "orders.DLT", topic: true,
			headers: map[string]string{
				"kafka_dlt-original-topic":           "orders",
				"kafka_dlt-original-partition":       int4(0),
				"kafka_dlt-original-offset":          int8b(0),
				"kafka_dlt-key-exception-fqcn":       "org.springframework.kafka.support.serializer.DeserializationException",
				"kafka_dlt-key-exception-message":    "failed to deserialize",
				"kafka_dlt-key-exception-stacktrace": "trace",
			},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "orders", Partition: new(int32(0)), Offset: new(int64(0)), Position: "0/0"},
				ErrorMessage: "failed to deserialize",
				ErrorClass:   "org.springframework.kafka.support.serializer.DeserializationException",
				Reason:       envelope.ReasonMalformed,
			},
			trace: "trace",
		},
		"Spring Cloud Stream, Kafka binder": {
			source: "error.orders.billing", topic: true,
			headers: map[string]string{
				"x-original-topic": "orders", "x-original-partition": int4(7), "x-original-offset": int8b(1 << 40),
				"x-original-timestamp": int8b(uint64(died().UnixMilli())), "x-original-timestamp-type": "CreateTime",
				"x-exception-fqcn": "java.lang.IllegalStateException", "x-exception-message": "no stock",
				"x-exception-stacktrace": "java.lang.IllegalStateException: no stock",
			},
			own: map[string]string{"contentType": "application/json", "x-original-delay": "1000"},
			want: dlq.Entry{
				Origin: envelope.Origin{
					Topic: "orders", Partition: new(int32(7)), Offset: new(int64(1 << 40)), Position: "7/1099511627776",
					Timestamp: died(),
				},
				ErrorMessage: "no stock", ErrorClass: "java.lang.IllegalStateException", Reason: envelope.ReasonExhausted,
			},
			trace: "no stock",
		},
	}
}

// otherJava has dead letters of Spring AMQP and of Kafka Connect.
func otherJava() map[string]foreign {
	return map[string]foreign{
		"Spring AMQP, default exchange": {
			source: "errors",
			headers: map[string]string{
				"x-exception-message": "no stock", "x-exception-stacktrace": "java.lang.IllegalStateException: no stock\n\tat " +
					"Shop.sell",
				"x-original-exchange": "", "x-original-routingKey": "orders",
			},
			own: map[string]string{"__TypeId__": "shop.Order"},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "orders", Consumer: "orders", RoutingKey: "orders"},
				ErrorMessage: "no stock", ErrorClass: "java.lang.IllegalStateException", Reason: envelope.ReasonExhausted,
			},
			trace: "Shop.sell",
		},
		"Spring AMQP, after a wait": {
			source: "errors",
			headers: map[string]string{
				"x-exception-message": "no stock", "x-original-exchange": "", "x-original-routingKey": "orders",
				"x-death": `[{"count":1,"exchange":"","queue":"orders.later","reason":"expired",` +
					`"routing-keys":["orders.later"],"time":"2026-11-20T07:30:01Z"}]`,
			},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "orders", Consumer: "orders", RoutingKey: "orders"},
				ErrorMessage: "no stock", Reason: envelope.ReasonExhausted, DiedAt: died(),
			},
		},
		"Kafka Connect": {
			source: "dlq-orders-sink", topic: true,
			headers: map[string]string{
				"__connect.errors.topic":                "orders",
				"__connect.errors.partition":            "12",
				"__connect.errors.offset":               "1042",
				"__connect.errors.connector.name":       "orders-sink",
				"__connect.errors.task.id":              "0",
				"__connect.errors.stage":                "VALUE_CONVERTER",
				"__connect.errors.class.name":           "org.apache.kafka.connect.json.JsonConverter",
				"__connect.errors.exception.class.name": "org.apache.kafka.connect.errors.DataException",
				"__connect.errors.exception.message":    "Converting byte[] to Kafka Connect data failed",
				"__connect.errors.exception.stacktrace": "org.apache.kafka.connect.errors.DataException: Converting",
			},
			own: map[string]string{"app": "shop"},
			want: dlq.Entry{
				Origin: envelope.Origin{
					Topic: "orders", Consumer: "connect-orders-sink", Partition: new(int32(12)), Offset: new(int64(1042)),
					Position: "12/1042",
				},
				ErrorMessage: "Converting byte[] to Kafka Connect data failed", ErrorCode: "VALUE_CONVERTER",
				ErrorClass: "org.apache.kafka.connect.errors.DataException", Handler: "orders-sink",
				Reason: envelope.ReasonMalformed,
			},
			trace: "Converting",
		},
	}
}

// dotNet has dead letters of NServiceBus and MassTransit.
func dotNet() map[string]foreign {
	return map[string]foreign{
		"NServiceBus": {
			source: "error",
			headers: map[string]string{
				"NServiceBus.FailedQ":                          "Sales@SELENE",
				"NServiceBus.TimeOfFailure":                    "2026-11-20 07:30:01:000462 Z",
				"NServiceBus.ExceptionInfo.ExceptionType":      "System.TimeoutException",
				"NServiceBus.ExceptionInfo.InnerExceptionType": "System.Exception",
				"NServiceBus.ExceptionInfo.HelpLink":           "",
				"NServiceBus.ExceptionInfo.Message":            "The bank did not answer",
				"NServiceBus.ExceptionInfo.Source":             "NServiceBus.Core",
				"NServiceBus.ExceptionInfo.StackTrace": "System.TimeoutException: The bank did not answer\n   at " +
					"Sales.Pay()",
				"NServiceBus.ExceptionInfo.Data.Handler": "PayHandler",
			},
			own: map[string]string{
				"NServiceBus.MessageId": "0d0b", "NServiceBus.EnclosedMessageTypes": "Sales.Pay",
				"NServiceBus.ProcessingEndpoint": "Sales",
				"NServiceBus.ContentType":        "application/json", "NServiceBus.TimeSent": "2026-11-20 07:29:01:174786 Z",
			},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "Sales", Consumer: "Sales"},
				ErrorMessage: "The bank did not answer", ErrorClass: "System.TimeoutException", Handler: "Sales",
				Reason: envelope.ReasonExhausted, DiedAt: died().Add(462 * time.Microsecond),
			},
			trace: "at Sales.Pay()",
		},
		"MassTransit, error queue": {
			source: "submit-order_error",
			headers: map[string]string{
				"MT-Reason":                "fault",
				"MT-Fault-InputAddress":    "rabbitmq://localhost/shop/submit-order?durable=true",
				"MT-Fault-ExceptionType":   "System.ArgumentNullException",
				"MT-Fault-Message":         "Value cannot be null. (Parameter 'customer')",
				"MT-Fault-StackTrace":      "   at Shop.SubmitOrderConsumer.Consume()",
				"MT-Fault-Timestamp":       "2026-11-20T07:30:01.0000000Z",
				"MT-Fault-ConsumerType":    "Shop.SubmitOrderConsumer",
				"MT-Fault-MessageType":     "Shop.SubmitOrder",
				"MT-Fault-RetryCount":      "3",
				"MT-Fault-RedeliveryCount": "1",
			},
			own: map[string]string{
				"MT-Host-MachineName": "web-1", "MT-Fault-Address": "rabbitmq://localhost/faults",
				"amqp-content-type": "application/vnd.masstransit+json",
			},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "submit-order", Consumer: "submit-order"},
				ErrorMessage: "Value cannot be null. (Parameter 'customer')", ErrorClass: "System.ArgumentNullException",
				Handler: "Shop.SubmitOrderConsumer", Attempts: 5, Reason: envelope.ReasonExhausted, DiedAt: died(),
			},
			trace: "SubmitOrderConsumer.Consume",
		},
		"MassTransit, skipped queue": {
			source:  "submit-order_skipped",
			headers: map[string]string{"MT-Reason": "dead-letter"},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "submit-order"},
				ErrorMessage: "skipped: no consumer of the endpoint takes this message type", Reason: envelope.ReasonPermanent,
			},
		},
	}
}

// ours has dead letters of Watermill and this project.
func ours() map[string]foreign {
	return map[string]foreign{
		"Watermill's PoisonQueue": {
			source: "poison", topic: true,
			headers: map[string]string{
				"reason_poisoned": "no stock", "topic_poisoned": "orders", "handler_poisoned": "pay",
				"subscriber_poisoned": "amqp.Subscriber",
			},
			own: map[string]string{"correlation_id": "c-1"},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "orders"},
				ErrorMessage: "no stock", Handler: "pay", Attempts: 1, Reason: envelope.ReasonPermanent, CorrelationID: "c-1",
			},
		},
		"ours, on Kafka": {
			source: "orders.billing_dlq",
			headers: map[string]string{
				envelope.KeyDeadLetterReason: "permanent", envelope.KeyTopic: "orders", envelope.KeyConsumer: "billing",
				envelope.KeyErrorMessage: `line\nbreak`, envelope.KeyErrorCode: "422", envelope.KeyErrorClass: "*shop.Error",
				envelope.KeyErrorTrace: "goroutine 1", envelope.KeyDeadLetterRule: "a rule", envelope.KeyPoisonHandler: "pay",
				"x-kafka-partition": "3", "x-kafka-offset": "9", "x-kafka-timestamp": "1795159801000", "x-retry-count": "2",
			},
			own: map[string]string{envelope.KeyMessageID: "m-1", envelope.KeyVersion: "1.0", envelope.KeyQueue: "orders"},
			want: dlq.Entry{
				Origin: envelope.Origin{
					Topic: "orders", Consumer: "billing", Partition: new(int32(3)), Offset: new(int64(9)), Position: "3/9",
					Timestamp: died(),
				},
				ErrorMessage: "line\nbreak", ErrorCode: "422", ErrorClass: "*shop.Error", Handler: "pay", Attempts: 2,
				Rule:   "a rule",
				Reason: envelope.ReasonPermanent,
			},
			trace: "goroutine 1",
		},
		"ours, of a class and a group with words of RabbitMQ's waits": {
			source: "orders.retry-service_dlq",
			headers: map[string]string{
				envelope.KeyDeadLetterReason: "permanent", envelope.KeyTopic: "orders", envelope.KeyConsumer: "retry-service",
				envelope.KeyErrorMessage: "the card", envelope.KeyErrorClass: "expired",
			},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "orders", Consumer: "retry-service"},
				ErrorMessage: "the card", ErrorClass: "expired", Reason: envelope.ReasonPermanent,
			},
		},
		"the service bus of PHP": {
			source: "easyweek.invoice-service.failed",
			headers: map[string]string{
				"x-retry-count": "3", "consumer_error": "invoice 7 has no customer",
				"x-death": `[{"count":1,"exchange":"","queue":"easyweek.invoice-service","reason":"rejected","routing-keys":["invoice.created"]}]`,
			},
			own: map[string]string{"amqp-type": "invoice.created"},
			want: dlq.Entry{
				Origin:       envelope.Origin{Topic: "easyweek.invoice-service"},
				ErrorMessage: "invoice 7 has no customer", Attempts: 3, Reason: envelope.ReasonExhausted,
			},
		},
		"headers that are nonsense": {
			source: "orders_dlq", topic: true,
			headers: map[string]string{
				"kafka_dlt-original-topic": "orders", "kafka_dlt-original-partition": "many",
				"kafka_dlt-original-offset":    int8b(1 << 63),
				"kafka_dlt-original-timestamp": int8b(1<<63 - 1), "kafka_dlt-exception-message": "\xff\x00bad",
				"retry_topic-attempts": "x",
			},
			want: dlq.Entry{
				Origin: envelope.Origin{Topic: "orders"}, ErrorMessage: "�\\0bad", Reason: envelope.ReasonExhausted,
			},
		},
		"no headers": {
			source: "orders_dlq", topic: true,
			want: dlq.Entry{
				Origin: envelope.Origin{Topic: "orders"}, ErrorMessage: "dead-lettered to orders_dlq without a reason",
				Reason: envelope.ReasonExhausted,
			},
		},
	}
}

// A PHP service's messages in orders_dlq have the error and the number of attempts in the body: different errors are
// different groups, and a redrive begins at 0.
func TestFormats_BodyOfALaravelQueue(t *testing.T) {
	t.Parallel()
	letters := newLetters(t)
	queue := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	t.Cleanup(func() { require.NoError(t, queue.Close()) })
	body := func(id, message string) []byte {
		return []byte(`{"message_id":"` + id +
			`","timestamp":"2026-02-28T22:53:42+00:00","version":"1.0","source":"checkout","queue":"orders",` +
			`"data":{"order_id":77},"metadata":[],"error":{"message":"` + message +
			`","code":"500","trace":"#0 Order.php"},"retry_count":5}`)
	}
	for id, text := range map[string]string{"m-1": "no stock", "m-2": "the bank is down"} {
		require.NoError(t, queue.Publish("orders_dlq", message.NewMessage(id, body(id, text))))
	}
	c, _ := start(t, collector.Config{Sink: letters, Sources: []collector.Source{
		{Broker: "main", Topic: "orders_dlq", Subscriber: queue, Origin: envelope.Origin{Broker: "amqp"}},
	}})
	collected(t, c, 2)
	groups := map[string]bool{}
	for _, listed := range entries(t, letters) {
		e, err := letters.Store().Get(t.Context(), listed.ID)
		require.NoError(t, err)
		require.Contains(t, []string{"no stock", "the bank is down"}, e.ErrorMessage)
		require.Equal(t, "500", e.ErrorCode)
		require.Equal(t, 5, e.Attempts)
		require.Equal(t, "orders", e.Origin.Topic)
		groups[e.Fingerprint] = true
		again, err := envelope.FromMessage(envelope.PrepareRedrive(message.NewMessage("m", body("m", "x")),
			envelope.Redrive{ID: "1", Count: 1}))
		require.NoError(t, err)
		require.Zero(t, again.RetryCount())
	}
	require.Len(t, groups, 2)
}

// Dead letters of other systems are read in their formats, stored, and returned to their origin with all headers except
// those of the dead letter. Watermill's gochannel delivers them, because it leaves headers alone.
func TestFormats(t *testing.T) {
	t.Parallel()
	for name, f := range systems() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			letters := newLetters(t)
			queue := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
			t.Cleanup(func() { require.NoError(t, queue.Close()) })
			m := message.NewMessage("id-1", []byte("\x00exact \xff bytes"))
			maps.Copy(m.Metadata, f.headers)
			maps.Copy(m.Metadata, f.own)
			require.NoError(t, queue.Publish(f.source, m))
			c, _ := start(t, collector.Config{Sink: letters, Sources: []collector.Source{
				{Broker: "main", Topic: f.source, Subscriber: queue, Origin: envelope.Origin{Broker: "mem"}},
			}})
			collected(t, c, 1)

			e := f.requireStored(t, letters, m)
			f.requireReturned(t, letters, e)
		})
	}
}

// requireStored checks the entry that was made of a message, and returns it.
func (f *foreign) requireStored(t *testing.T, letters *dlq.Letters, m *message.Message) *dlq.Entry {
	t.Helper()
	all := entries(t, letters)
	require.Len(t, all, 1)
	e, err := letters.Store().Get(t.Context(), all[0].ID)
	require.NoError(t, err)
	f.want.Origin.Broker = "mem"
	require.Equal(t, f.want.Origin, e.Origin)
	require.Equal(t, []any{
		f.want.ErrorMessage, f.want.ErrorCode, f.want.ErrorClass, f.want.Handler, f.want.Rule, f.want.Attempts,
		f.want.Reason, f.want.CorrelationID,
	}, []any{
		e.ErrorMessage, e.ErrorCode, e.ErrorClass, e.Handler, e.Rule, e.Attempts, e.Reason, e.CorrelationID,
	})
	if !f.want.DiedAt.IsZero() {
		require.Equal(t, f.want.DiedAt, e.DiedAt)
	}
	require.Contains(t, e.Body.Trace, f.trace)
	require.Equal(t, "\x00exact \xff bytes", string(e.Body.Payload))
	for header, value := range m.Metadata {
		require.Equal(t, value, e.Body.Headers[header], "kept as it came: %s", header)
	}
	return e
}

// requireReturned redrives an entry, and checks what arrives where it came from.
func (f *foreign) requireReturned(t *testing.T, letters *dlq.Letters, e *dlq.Entry) {
	t.Helper()
	b := newMemory(t, brokers.Config{})
	target := collector.Target{Name: "main", Scheme: "mem", Redriver: b}
	group := f.want.Origin.Consumer
	if f.topic {
		target.Publisher = b.Publisher()
		group = "any group"
	}
	router, err := collector.NewRouter(collector.RouterConfig{
		Store: letters.Store(), Targets: []collector.Target{target},
	})
	require.NoError(t, err)
	consumed(t, b, f.want.Origin.Topic, group)
	_, err = letters.Manager(router).Redrive(t.Context(), e.ID, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	back := b.Peek(f.want.Origin.Topic, group)
	require.Len(t, back, 1)
	want := map[string]string{envelope.KeyRedriveID: driver.FormatID(e.ID), envelope.KeyRedriveCount: "1"}
	maps.Copy(want, f.own)
	for header := range back[0].Metadata {
		// Our last error is passed on, as the envelope requires. The stage belongs to the broker, which removes it.
		if strings.HasPrefix(header, "x-error-") || header == envelope.KeyStage {
			delete(back[0].Metadata, header)
		}
	}
	require.Equal(t, want, map[string]string(back[0].Metadata))
	require.Equal(t, "\x00exact \xff bytes", string(back[0].Payload))
	require.Equal(t, "id-1", back[0].UUID)
}

// The configuration of a source takes precedence over its messages' headers.
func TestSource_Origin(t *testing.T) {
	t.Parallel()
	letters := newLetters(t)
	b := newMemory(t, brokers.Config{})
	m := message.NewMessage("1", nil)
	m.Metadata["kafka_dlt-original-topic"] = "orders"
	m.Metadata["kafka_dlt-original-consumer-group"] = "billing"
	require.NoError(t, b.Publisher().Publish("orders.DLT", m))
	c, _ := start(t, collector.Config{Sink: letters, Sources: []collector.Source{{
		Broker: "main", Topic: "orders.DLT", Subscriber: b.Subscriber(), Origin: envelope.Origin{Topic: "orders-retry-0"},
	}}})
	collected(t, c, 1)
	e := entries(t, letters)[0]
	require.Equal(t, "orders-retry-0", e.Origin.Topic, "only the group that failed reads its retry topic")
	require.Equal(t, "billing", e.Origin.Consumer)
	require.Equal(t, "mem", e.Origin.Broker)
}

// A custom format comes first.
func TestConfig_Formats(t *testing.T) {
	t.Parallel()
	celery := collector.Format{
		Name: "celery",
		Read: func(m *message.Message, d *collector.Death) bool {
			if m.Metadata["task"] == "" {
				return false
			}
			d.Topic, d.Handler, d.Err.Message = "tasks", m.Metadata["task"], m.Metadata["exc"]
			return true
		},
		Owns: func(header string) bool { return header == "exc" },
	}
	letters := newLetters(t)
	b := newMemory(t, brokers.Config{})
	m := message.NewMessage("1", nil)
	m.Metadata = message.Metadata{"task": "mail.send", "exc": "SMTP down"}
	require.NoError(t, b.Publisher().Publish("failed-tasks", m))
	c, _ := start(t, collector.Config{Sink: letters, Formats: []collector.Format{celery}, Sources: []collector.Source{
		{Broker: "main", Topic: "failed-tasks", Subscriber: b.Subscriber()},
	}})
	collected(t, c, 1)
	e := entries(t, letters)[0]
	require.Equal(t, []string{"tasks", "mail.send", "SMTP down"}, []string{e.Origin.Topic, e.Handler, e.ErrorMessage})

	router, err := collector.NewRouter(collector.RouterConfig{
		Store: letters.Store(), Formats: []collector.Format{celery},
		Targets: []collector.Target{{Name: "main", Scheme: "mem", Redriver: b, Publisher: b.Publisher()}},
	})
	require.NoError(t, err)
	consumed(t, b, "tasks", "")
	_, err = letters.Manager(router).Redrive(t.Context(), e.ID, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	back := b.Peek("tasks", "")
	require.Len(t, back, 1)
	require.Equal(t, "mail.send", back[0].Metadata["task"])
	require.NotContains(t, back[0].Metadata, "exc")
}

// A format that panics does not read its message, and does not end the process.
func TestConfig_FormatThatPanics(t *testing.T) {
	t.Parallel()
	broken := collector.Format{
		Name: "broken",
		Read: func(_ *message.Message, d *collector.Death) bool {
			d.Topic = "half read"
			panic("index out of range")
		},
	}
	letters := newLetters(t)
	b := newMemory(t, brokers.Config{})
	require.NoError(t, b.Publisher().Publish("orders_dlq", message.NewMessage("1", nil)))
	c, _ := start(t, collector.Config{Sink: letters, Formats: []collector.Format{broken}, Sources: []collector.Source{
		{Broker: "main", Topic: "orders_dlq", Subscriber: b.Subscriber()},
	}})
	collected(t, c, 1)
	require.Equal(t, "orders", entries(t, letters)[0].Origin.Topic)
}
