package collector_test

import (
	"maps"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/services"
)

// redriveAll redrives all entries in one run, and requires that the broker's confirmation closes every entry.
func redriveAll(t *testing.T, letters *dlq.Letters, target collector.Target) {
	t.Helper()
	router, err := collector.NewRouter(collector.RouterConfig{Store: letters.Store(), Targets: []collector.Target{target}})
	require.NoError(t, err)
	m, err := redrive.NewRunner(letters.Manager(router), redrive.Config{})
	require.NoError(t, err)
	run, err := m.StartRun(t.Context(), redrive.Spec{}, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	total := run.Counts.Total()
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, redrive.Completed, run.State, run.Cause)
	require.Equal(t, redrive.Counts{Succeeded: total}, run.Counts)
}

// entryOf returns the entry of a source's only message.
func entryOf(t *testing.T, letters *dlq.Letters, id string) dlq.Entry {
	t.Helper()
	for _, e := range entries(t, letters) {
		if e.EventID == id {
			return e
		}
	}
	t.Fatalf("%s was not collected", id)
	return dlq.Entry{}
}

// The error queues of NServiceBus, MassTransit, Spring AMQP and Watermill on RabbitMQ can be read in their own formats,
// and one run returns every message to its queue with its own headers, each with its type.
func TestRabbitMQ_ForeignErrorQueues(t *testing.T) {
	t.Parallel()
	url := services.SharedRabbitMQ(t).VHost(t)
	s := newService(t, url)
	systems := map[string]struct {
		errors, queue, class, text string
		dead, own                  amqp.Table
	}{
		"nservicebus": {
			"error", "Sales", "System.TimeoutException", "The bank did not answer",
			amqp.Table{
				"NServiceBus.FailedQ": "Sales", "NServiceBus.ExceptionInfo.ExceptionType": "System.TimeoutException",
				"NServiceBus.ExceptionInfo.Message": "The bank did not answer",
				"NServiceBus.TimeOfFailure":         "2026-11-20 07:30:01:000462 Z",
			},
			amqp.Table{"NServiceBus.MessageId": "0d0b", "NServiceBus.EnclosedMessageTypes": "Sales.Pay", "retries": int32(2)},
		},
		"masstransit": {
			"submit-order_error", "submit-order", "System.ArgumentNullException", "Value cannot be null.",
			amqp.Table{
				"MT-Reason": "fault", "MT-Fault-InputAddress": "rabbitmq://localhost/shop/submit-order?durable=true",
				"MT-Fault-ExceptionType": "System.ArgumentNullException", "MT-Fault-Message": "Value cannot be null.",
				"MT-Fault-RetryCount": int32(3),
			},
			amqp.Table{"MT-Host-MachineName": "web-1", "publishId": int64(7)},
		},
		"spring-amqp": {
			"spring.errors", "invoices", "java.lang.IllegalStateException", "no stock",
			amqp.Table{
				"x-exception-message": "no stock", "x-exception-stacktrace": "java.lang.IllegalStateException: no stock\n\tat " +
					"Shop.sell",
				"x-original-exchange": "", "x-original-routingKey": "invoices",
			},
			amqp.Table{"__TypeId__": "shop.Invoice", "urgent": true},
		},
		"watermill": {
			"poison", "parcels", "", "no carrier",
			amqp.Table{
				"reason_poisoned": "no carrier", "topic_poisoned": "parcels", "handler_poisoned": "ship",
				"subscriber_poisoned": "amqp",
			},
			amqp.Table{"correlation_id": "c-1"},
		},
	}
	var sources []collector.Source
	broker, cfg := operate(t, url)
	for name, sys := range systems {
		for _, queue := range []string{sys.errors, sys.queue} {
			_, err := s.channel.QueueDeclare(queue, true, false, false, false, nil)
			require.NoError(t, err)
		}
		headers := amqp.Table{}
		for _, table := range []amqp.Table{sys.dead, sys.own} {
			maps.Copy(headers, table)
		}
		confirm, err := s.channel.PublishWithDeferredConfirmWithContext(t.Context(), "", sys.errors, true, false,
			amqp.Publishing{
				MessageId: name, DeliveryMode: amqp.Persistent, ContentType: "application/json", Headers: headers,
				Body: []byte(name),
			})
		require.NoError(t, err)
		acked, err := confirm.WaitContext(t.Context())
		require.NoError(t, err)
		require.True(t, acked)
		sources = append(sources, collector.Source{
			Broker: "rabbit", Topic: sys.errors,
			Subscriber: broker.Subscriber(brokers.WithConcurrency(20)),
		})
	}
	letters := newLetters(t)
	start(t, letters, sources...)
	eventually(t, func() bool { return len(entries(t, letters)) == len(systems) })
	for name, sys := range systems {
		e := entryOf(t, letters, name)
		require.Equal(t, []string{sys.queue, sys.class, sys.text}, []string{e.Origin.Topic, e.ErrorClass, e.ErrorMessage},
			name)
	}
	redriveAll(t, letters, collector.Target{Name: "rabbit", Scheme: cfg.Scheme(), Redriver: broker})
	for name, sys := range systems {
		back := s.take(t, sys.queue)
		require.Equal(t, []string{name, name, "application/json"},
			[]string{string(back.Body), back.MessageId, back.ContentType})
		for key := range back.Headers {
			switch {
			case strings.HasPrefix(key, "x-redrive-"), key == envelope.KeyStage,
				key == envelope.KeyConsumer, key == envelope.KeyExchange, key == envelope.KeyRoutingKey:
				delete(back.Headers, key)
			}
		}
		require.Equal(t, sys.own, back.Headers, name)
		require.NoError(t, back.Ack(false))
	}
}

// The same holds on Kafka for Connect and Watermill, whose messages return to their topic with key and headers.
func TestKafka_ForeignTopics(t *testing.T) {
	t.Parallel()
	k := services.SharedKafka(t)
	topic, connect, poison := k.CreateTopic(t, 1), k.CreateTopic(t, 1), k.CreateTopic(t, 1)
	plain, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(strings.TrimPrefix(k.URL(), "kafka://"), ",")...),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	t.Cleanup(plain.Close)
	record := func(to, key string, headers map[string]string) *kgo.Record {
		r := &kgo.Record{Topic: to, Key: []byte(key), Value: []byte("\x00" + key)}
		for name, value := range headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
		}
		return r
	}
	require.NoError(t, plain.ProduceSync(t.Context(),
		record(connect, "connect", map[string]string{
			"__connect.errors.topic": topic, "__connect.errors.partition": "0", "__connect.errors.offset": "1042",
			"__connect.errors.connector.name":    "orders-sink",
			"__connect.errors.exception.message": "Converting failed", "app": "shop",
		}),
		record(poison, "watermill", map[string]string{
			"reason_poisoned": "no stock", "topic_poisoned": topic, "handler_poisoned": "pay", "subscriber_poisoned": "kafka",
			"correlation_id": "c-1", "_watermill_message_uuid": "watermill",
		})).FirstErr())
	letters := newLetters(t)
	broker, cfg := operate(t, k.URL())
	start(t, letters,
		collector.Source{Broker: "log", Topic: connect, Subscriber: broker.Subscriber()},
		collector.Source{Broker: "log", Topic: poison, Subscriber: broker.Subscriber()})
	eventually(t, func() bool { return len(entries(t, letters)) == 2 })
	for _, e := range entries(t, letters) {
		require.Equal(t, topic, e.Origin.Topic)
		require.Contains(t, []string{"Converting failed", "no stock"}, e.ErrorMessage)
	}
	redriveAll(t, letters, collector.Target{
		Name: "log", Scheme: cfg.Scheme(), Redriver: broker,
		Publisher: broker.Publisher(),
	})
	own := map[string]map[string]string{"connect": {"app": "shop"}, "watermill": {"correlation_id": "c-1"}}
	for n := 0; n < len(own); {
		fetched := plain.PollFetches(t.Context())
		require.NoError(t, fetched.Err())
		for iter := fetched.RecordIter(); !iter.Done(); n++ {
			back := iter.Next()
			require.Equal(t, "\x00"+string(back.Key), string(back.Value))
			headers := map[string]string{}
			for _, h := range back.Headers {
				if !strings.HasPrefix(h.Key, "x-redrive-") && h.Key != "_watermill_message_uuid" {
					headers[h.Key] = string(h.Value)
				}
			}
			require.Equal(t, own[string(back.Key)], headers, string(back.Key))
		}
	}
}
