package collector_test

import (
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// Messages in the dead letter topic of a Spring service are collected, with the numbers that Java writes as bytes, and
// return to the topic with key and headers.
func TestKafka_SpringService(t *testing.T) {
	k := services.SharedKafka(t)
	topic, dlt := k.CreateTopic(t, 3), k.CreateTopic(t, 3)
	seeds := strings.Split(strings.TrimPrefix(k.URL(), "kafka://"), ",")
	plain, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(t, err)
	t.Cleanup(plain.Close)
	require.NoError(t, plain.ProduceSync(t.Context(), &kgo.Record{
		Topic: dlt, Key: []byte("customer-7"), Value: []byte("order"), Headers: []kgo.RecordHeader{
			{Key: "kafka_dlt-original-topic", Value: []byte(topic)},
			{Key: "kafka_dlt-original-partition", Value: binary.BigEndian.AppendUint32(nil, 2)},
			{Key: "kafka_dlt-original-offset", Value: binary.BigEndian.AppendUint64(nil, 1042)},
			{Key: "kafka_dlt-original-consumer-group", Value: []byte("billing")},
			{Key: "kafka_dlt-exception-cause-fqcn", Value: []byte("java.net.SocketTimeoutException")},
			{Key: "kafka_dlt-exception-message", Value: []byte("read timed out")},
			{Key: "__TypeId__", Value: []byte("shop.Order")},
		},
	}).FirstErr())

	letters := newLetters(t)
	broker, cfg := operate(t, k.URL())
	start(t, letters, collector.Source{
		Broker: "log", Topic: dlt,
		Subscriber: broker.Subscriber(brokers.WithConcurrency(20)),
	})
	eventually(t, func() bool { return len(entries(t, letters)) == 1 })
	e := entries(t, letters)[0]
	require.Equal(t, "2/1042", e.Origin.Position)
	require.Equal(t, topic, e.Origin.Topic)
	require.Equal(t, "billing", e.Origin.Consumer)
	require.Equal(t, "java.net.SocketTimeoutException", e.ErrorClass)

	router, err := collector.NewRouter(collector.RouterConfig{Store: letters.Store(), Targets: []collector.Target{
		{Name: "log", Scheme: cfg.Scheme(), Redriver: broker, Publisher: broker.Publisher()},
	}})
	require.NoError(t, err)
	_, err = letters.Manager(router).Redrive(t.Context(), e.ID, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	var back *kgo.Record
	for back == nil {
		fetched := plain.PollFetches(t.Context())
		require.NoError(t, fetched.Err())
		for iter := fetched.RecordIter(); !iter.Done(); {
			back = iter.Next()
		}
	}
	require.Equal(t, "customer-7", string(back.Key))
	require.Equal(t, "order", string(back.Value))
	headers := map[string]string{}
	for _, h := range back.Headers {
		headers[h.Key] = string(h.Value)
	}
	require.Equal(t, map[string]string{
		"__TypeId__": "shop.Order", "_watermill_message_uuid": e.EventID,
		envelope.KeyRedriveID: driver.FormatID(e.ID), envelope.KeyRedriveCount: "1",
	}, headers)
}

// A service that uses this module may store dead letters only in Kafka: they are collected with their topic, partition,
// offset and error, and return with key and headers to the group that failed; a second group on the topic does not get
// them.
func TestKafka_OwnService(t *testing.T) {
	k := services.SharedKafka(t)
	topic := k.CreateTopic(t, 3)
	own, err := brokers.Open(t.Context(), k.URL(), func(c *brokers.Config) { c.PublishTimeout = await.Patience })
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Close()) })
	billing, err := own.Subscriber(brokers.WithGroup("billing")).Subscribe(t.Context(), topic)
	require.NoError(t, err)
	mail, err := own.Subscriber(brokers.WithGroup("mail")).Subscribe(t.Context(), topic)
	require.NoError(t, err)

	m := message.NewMessage("order-1", []byte{0xff, 0, '{'})
	m.Metadata["tenant"] = "acme"
	m.Metadata[envelope.KeyKafkaKey] = "customer-7"
	require.NoError(t, own.Publisher().Publish(topic, m))
	(<-mail).Ack()
	received := <-billing
	origin, _ := envelope.OriginFrom(received.Context())
	dead := envelope.RecordFailure(received, envelope.Failure{
		Err: envelope.Error{Message: "bank: timeout", Code: "504"}, Retry: 4, Reason: envelope.ReasonExhausted,
		Handler: "pay",
	})
	require.NoError(t, own.DeadLetter(t.Context(), &envelope.DeadLetter{Message: dead, Origin: *origin}))
	received.Ack()

	letters := newLetters(t)
	broker, cfg := operate(t, k.URL())
	start(t, letters, collector.Source{Broker: "log", Topic: topic + ".billing_dlq", Subscriber: broker.Subscriber()})
	eventually(t, func() bool { return len(entries(t, letters)) == 1 })
	e := entries(t, letters)[0]
	require.Equal(t, []string{topic, "billing", origin.Position, "pay", "bank: timeout", "504"}, []string{
		e.Origin.Topic, e.Origin.Consumer, e.Origin.Position, e.Handler, e.ErrorMessage, e.ErrorCode,
	})
	require.Equal(t, origin.Partition, e.Origin.Partition)
	require.Equal(t, origin.Offset, e.Origin.Offset)
	require.Equal(t, "customer-7", string(e.Origin.Key))
	require.WithinDuration(t, origin.Timestamp, e.Origin.Timestamp, time.Millisecond)

	router, err := collector.NewRouter(collector.RouterConfig{Store: letters.Store(), Targets: []collector.Target{
		{Name: "log", Scheme: cfg.Scheme(), Redriver: broker},
	}})
	require.NoError(t, err)
	_, err = letters.Manager(router).Redrive(t.Context(), e.ID, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	back := <-billing
	back.Ack()
	again, _ := envelope.OriginFrom(back.Context())
	require.Equal(t, origin.Position, again.Position)
	require.Equal(t, m.Payload, back.Payload)
	require.Equal(t, "acme", back.Metadata["tenant"])
	require.Equal(t, "customer-7", back.Metadata[envelope.KeyKafkaKey])
	control, err := envelope.ReadControl(back)
	require.NoError(t, err)
	require.Zero(t, control.RetryCount)
	require.Equal(t, driver.FormatID(e.ID), control.RedriveID)

	require.NoError(t, own.Publisher().Publish(topic, message.NewMessage("order-2", nil)))
	next := <-mail
	next.Ack()
	require.Equal(t, "order-2", next.UUID, "this group gets no redrive")
}
