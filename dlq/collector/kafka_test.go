package collector_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/kafka" // kafka
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/collector"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// A Spring service on Kafka dead-letters the same record twice, as it does after a separate crash. It is one entry; its
// redrive goes to the topic with the key and the headers, and when that dies, it is still the same entry.
func TestCollector_SpringOnKafka(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "orders", "orders-dlt"),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	broker, err := brokers.Open(t.Context(),
		"kafka://"+strings.Join(cluster.ListenAddrs(), ",")+"?group=redrive-collector&publish-timeout=1m")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, broker.Close()) })
	plain, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics("orders"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	require.NoError(t, err)
	t.Cleanup(plain.Close)

	dies := func(key, value string, headers []kgo.RecordHeader, partition uint32, offset uint64) {
		headers = append([]kgo.RecordHeader{
			{Key: "kafka_dlt-original-topic", Value: []byte("orders")},
			{Key: "kafka_dlt-original-partition", Value: []byte(int4(partition))},
			{Key: "kafka_dlt-original-offset", Value: []byte(int8b(offset))},
			{Key: "kafka_dlt-original-consumer-group", Value: []byte("billing")},
			{Key: "kafka_dlt-exception-cause-fqcn", Value: []byte("java.net.SocketTimeoutException")},
			{Key: "kafka_dlt-exception-message", Value: []byte("read timed out")},
		}, headers...)
		require.NoError(t, plain.ProduceSync(t.Context(), &kgo.Record{
			Topic: "orders-dlt", Partition: int32(partition), Key: []byte(key), Value: []byte(value), Headers: headers,
		}).FirstErr())
	}
	own := []kgo.RecordHeader{{Key: "__TypeId__", Value: []byte("shop.Order")}, {Key: "bytes", Value: []byte{0, 255}}}
	dies("customer-7", "order", own, 2, 41)
	dies("customer-7", "order", own, 2, 41)

	letters := newLetters(t)
	c, _ := start(t, collector.Config{Sink: letters, Sources: []collector.Source{
		{Broker: "log", Topic: "orders-dlt", Subscriber: broker.Subscriber(brokers.WithConcurrency(10))},
	}})
	collected(t, c, 2)
	all := entries(t, letters)
	require.Len(t, all, 1, "one message, however often it was dead-lettered")
	e := all[0]
	require.Equal(t, "2/41", e.Origin.Position)
	require.Equal(t, envelope.StableID(&envelope.Origin{Broker: "kafka", Topic: "orders", Position: "2/41"}), e.EventID)
	require.Equal(t, "java.net.SocketTimeoutException", e.ErrorClass)

	router, err := collector.NewRouter(collector.RouterConfig{Store: letters.Store(), Targets: []collector.Target{
		{Name: "log", Scheme: "kafka", Redriver: broker, Publisher: broker.Publisher()},
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
		"__TypeId__": "shop.Order", "bytes": "\x00\xff", "_watermill_message_uuid": e.EventID,
		envelope.KeyRedriveID: driver.FormatID(e.ID), envelope.KeyRedriveCount: "1",
	}, headers)

	dies("customer-7", "order", back.Headers, uint32(back.Partition), uint64(back.Offset))
	collected(t, c, 3)
	all = entries(t, letters)
	require.Len(t, all, 1, "its second death is the same entry's")
	require.Equal(t, dlq.Pending, all[0].Status)
	require.Equal(t, 1, all[0].RedriveCount)
	require.WithinDuration(t, time.Now(), all[0].DiedAt, time.Minute)
}
