package kafka_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// One handler runs per partition, all concurrently, in the order of each key, and each message is handled once.
func TestPartitions_AreHandledConcurrently(t *testing.T) {
	t.Parallel()
	const partitions, keys, each = 3, 12, 5
	b, err := brokers.Open(t.Context(), urlOf(cluster(t),
		fmt.Sprintf("group=billing&partitions=%d&x-concurrency=8", partitions)))
	require.NoError(t, err)
	require.Equal(t, partitions, b.Capabilities().MaxConcurrency)
	for n := range each {
		for key := range keys {
			m := message.NewMessage(fmt.Sprintf("%d/%d", key, n), nil)
			m.Metadata[envelope.KeyKafkaKey] = strconv.Itoa(key)
			require.NoError(t, b.Publisher().Publish("orders", m))
		}
	}
	messages, err := b.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)

	inHand, order, at := map[int32]*message.Message{}, map[string]int{}, 0
	for range keys * each {
		m := <-messages
		origin, ok := envelope.OriginFrom(m.Context())
		require.True(t, ok)
		require.NotContains(t, inHand, *origin.Partition, "a second message of the same partition")
		inHand[*origin.Partition] = m
		at = max(at, len(inHand))
		key := m.Metadata[envelope.KeyKafkaKey]
		require.Equal(t, fmt.Sprintf("%s/%d", key, order[key]), m.UUID)
		order[key]++
		if len(inHand) < partitions && at < partitions {
			continue // until all partitions have a message in flight
		}
		m.Ack()
		delete(inHand, *origin.Partition)
		for partition, m := range inHand { // the messages of the first round
			m.Ack()
			delete(inHand, partition)
		}
	}
	require.Equal(t, partitions, at)
	require.NoError(t, b.Close())
}

// An ack right before Close is committed on every partition. watermill-kafka itself drops an ack that it receives after
// the session's context has ended.
func TestClose_KeepsAcks(t *testing.T) {
	t.Parallel()
	const partitions, rounds = 32, 4
	url := urlOf(cluster(t), fmt.Sprintf("group=billing&partitions=%d&x-concurrency=%[1]d", partitions))
	for round := range rounds {
		b, err := brokers.Open(t.Context(), url)
		require.NoError(t, err)
		messages, err := b.Subscriber().Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		for partition := range partitions { // keys that sarama's hash maps to different partitions
			m := message.NewMessage(strconv.Itoa(round), nil)
			m.Metadata[envelope.KeyKafkaKey] = keyOf(t, partition, partitions)
			require.NoError(t, b.Publisher().Publish("orders", m))
		}
		inHand := make([]*message.Message, partitions)
		for i := range inHand {
			inHand[i] = <-messages
			require.Equal(t, strconv.Itoa(round), inHand[i].UUID, "a message acked before Close was redelivered")
		}
		for _, m := range inHand {
			m.Ack()
		}
		require.NoError(t, b.Close())
	}
}

// keyOf returns a key whose records go to that partition.
func keyOf(t *testing.T, partition int, partitions int32) string {
	t.Helper()
	for n := 0; ; n++ {
		key := strconv.Itoa(n)
		to, err := sarama.NewHashPartitioner("orders").Partition(&sarama.ProducerMessage{Key: sarama.StringEncoder(key)},
			partitions)
		require.NoError(t, err)
		if int(to) == partition {
			return key
		}
	}
}
