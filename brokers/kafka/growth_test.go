package kafka_test

import (
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redrive-go/redrive/envelope"
)

// When partitions are added to a topic while its consumers run, messages on the new ones are retried, dead-lettered and
// kept in order like others, without a restart.
func TestTopic_GrowsWhileConsumersRun(t *testing.T) {
	t.Parallel()
	for title, params := range map[string][]string{"order none": nil, "order of keys": {"order=key", "concurrency=4"}} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			growsWhileConsumersRun(t, params)
		})
	}
}

func growsWhileConsumersRun(t *testing.T, params []string) {
	t.Helper()
	c := cluster(t)
	b := open(t, c, append(params, "session-timeout=20s")...)
	topic := name("orders")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Joined(t.Context()))
	require.NoError(t, b.Publisher().Publish(topic, newMessage("0", ""))) // our producers know the old topics
	retryIn(t, b, receive(t, messages), time.Second)
	deadLetter(t, b, receive(t, messages))
	addPartitions(t, c, topic, params)

	keyed := func(key, payload string) *sarama.ProducerMessage {
		return &sarama.ProducerMessage{
			Topic: topic, Partition: 2, Key: sarama.StringEncoder(key), Value: sarama.StringEncoder(payload),
		}
	}
	produce(t, c, keyed("a", "a1"))
	m := receive(t, messages)
	require.Equal(t, "a1", string(m.Payload))
	retryIn(t, b, m, time.Second)
	released := make(chan struct{})
	release := sync.OnceFunc(func() { close(released) })
	if params != nil { // with one handler, the retry may arrive before the next message
		messages = retriedUntil(t, b, messages, "a1", time.Second, released)
	}
	produce(t, c, keyed("a", "a2"), keyed("b", "b1"))
	got := map[string]bool{}
	var order []string
	for range 3 {
		m := receive(t, messages)
		got[string(m.Payload)] = true
		if order = append(order, string(m.Payload)); order[len(order)-1] == "b1" {
			release()
		}
		origin, _ := envelope.OriginFrom(m.Context())
		require.EqualValues(t, 2, *origin.Partition)
		deadLetter(t, b, m)
	}
	require.Len(t, got, 3)
	if params != nil {
		require.Equal(t, []string{"b1", "a1", "a2"}, order)
	}
	nothingMore(t, messages)
}

// Only the leader of a group redistributes partitions, and it looked at topics that only other members read every five
// minutes.
func TestTopic_GrowsThatTheLeaderDoesNotRead(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.SeedTopics(1, "orders", "invoices"))
	b := open(t, c)
	topics := map[string]<-chan *message.Message{}
	for _, topic := range []string{"orders", "invoices"} {
		topics[topic] = subscribe(t, b, topic)
	}
	require.NoError(t, b.Joined(t.Context()))
	for topic, messages := range topics {
		_, err := administer(t, c).UpdatePartitions(t.Context(), 2, topic)
		require.NoError(t, err)
		produce(t, c, &sarama.ProducerMessage{Topic: topic, Partition: 1})
		receive(t, messages).Ack()
	}
}

// addPartitions adds two partitions to a topic. A rebalance lets its consumers find them at once.
func addPartitions(t *testing.T, c *kfake.Cluster, topic string, params []string) {
	t.Helper()
	admin, err := sarama.NewClusterAdmin(c.ListenAddrs(), sarama.NewConfig())
	require.NoError(t, err)
	defer func() { require.NoError(t, admin.Close()) }()
	require.NoError(t, admin.CreatePartitions(topic, 3, nil, false))
	other := open(t, c, append(params, "session-timeout=20s")...)
	subscribe(t, other, topic)
	require.NoError(t, other.Joined(t.Context()))
	require.NoError(t, other.Close())
}
