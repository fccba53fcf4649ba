package collector_test

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/integration/services"
)

// A Spring service's dead letter topic: collected, with the numbers that Java writes as bytes, and back to the topic with key and
// headers.
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
	start(t, letters, collector.Source{Broker: "log", Topic: dlt, Subscriber: broker.Subscriber(brokers.WithConcurrency(20))})
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
		envelope.KeyRedriveID: dlq.FormatID(e.ID), envelope.KeyRedriveCount: "1",
	}, headers)
}
