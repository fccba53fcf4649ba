package kafka_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/envelope"
)

// cluster starts an in-process Kafka.
func cluster(t testing.TB, opts ...kfake.Opt) *kfake.Cluster {
	t.Helper()
	c, err := kfake.NewCluster(append([]kfake.Opt{
		kfake.NumBrokers(1), kfake.DefaultNumPartitions(1), kfake.GroupMinSessionTimeout(time.Second),
		kfake.BrokerConfigs(map[string]string{"group.initial.rebalance.delay.ms": "0"}),
	}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// urlOf returns a URL whose publish timeout is long enough for a busy machine.
func urlOf(c *kfake.Cluster, params ...string) string {
	return "kafka://" + strings.Join(c.ListenAddrs(), ",") + "?" +
		strings.Join(slices.Concat(params, []string{"publish-timeout=1m"}), "&")
}

// open opens a broker.
func open(t testing.TB, c *kfake.Cluster, params ...string) *kafka.Broker {
	t.Helper()
	b, err := brokers.Open(context.Background(), urlOf(c, append([]string{"group=billing"}, params...)...))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b.(*kafka.Broker)
}

var counter atomic.Int64

func name(prefix string) string { return fmt.Sprintf("%s-%d", prefix, counter.Add(1)) }

func subscribe(t testing.TB, b brokers.Broker, topic string, opts ...brokers.SubscriberOption) <-chan *message.Message {
	t.Helper()
	messages, err := b.Subscriber(opts...).Subscribe(context.Background(), topic)
	require.NoError(t, err)
	return messages
}

// patience is how long a test waits for something that happens at once on an idle machine.
const patience = 2 * time.Minute

func receive(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m, ok := <-messages:
		require.True(t, ok, "the subscription ended")
		return m
	case <-time.After(patience):
		require.FailNow(t, "no message")
		return nil
	}
}

func newMessage(id, payload string) *message.Message {
	return message.NewMessage(id, []byte(payload))
}

func TestBroker_PublishRetryAndDeadLetter(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := open(t, c)
	orders := subscribe(t, b, "orders")

	sent := newMessage("m-1", "hello")
	sent.Metadata[envelope.KeyKafkaKey] = "customer-1"
	sent.Metadata["tenant"] = "acme"
	require.NoError(t, b.Publisher().Publish("orders", sent))

	m := receive(t, orders)
	require.Equal(t, "m-1", m.UUID)
	require.Equal(t, "hello", string(m.Payload))
	require.Equal(t, message.Metadata{envelope.KeyKafkaKey: "customer-1", "tenant": "acme"}, m.Metadata)
	origin, ok := envelope.OriginFrom(m.Context())
	require.True(t, ok)
	require.Equal(t, "0/0", origin.Position)

	began := time.Now()
	require.NoError(t, b.Reschedule(t.Context(), *origin, m.Copy(), 300*time.Millisecond))
	m.Ack()

	again := receive(t, orders)
	require.GreaterOrEqual(t, time.Since(began), 300*time.Millisecond)
	t.Log(time.Since(began))
	require.Equal(t, m.UUID, again.UUID)
	require.Equal(t, m.Metadata, again.Metadata)
	second, _ := envelope.OriginFrom(again.Context())
	require.Equal(t, origin, second)
	require.NoError(t, b.DeadLetter(t.Context(),
		&envelope.DeadLetter{Message: again, Origin: *second, Reason: "permanent"}))
	again.Ack()
}
