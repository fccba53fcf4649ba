package kafka_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/envelope"
)

// waitForDepths waits until a broker counts that many messages of a topic, by group and kind. Kinds that are not listed
// must have none.
func waitForDepths(t *testing.T, b *kafka.Broker, topic string, want map[string]int64) {
	t.Helper()
	deadline := time.After(patience)
	for {
		all, err := b.Depths(t.Context())
		require.NoError(t, err)
		have := map[string]int64{}
		for _, d := range all {
			if d.Topic == topic && d.Messages > 0 {
				have[d.Group+" "+string(d.Kind)] += d.Messages
			}
		}
		if len(have) == len(want) && func() bool {
			for name, n := range want {
				if have[name] != n {
					return false
				}
			}
			return true
		}() {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			require.Equal(t, want, have)
		}
	}
}

// Every member counts the group's waiting messages from all publishers, but no records that are not messages. Groups
// are counted separately, and delayed first deliveries once for all of them.
func TestDepths_OfTheWholeGroup(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.NumBrokers(3), kfake.DefaultNumPartitions(3))
	topic := name("orders")
	require.NoError(t, open(t, c).Subscriber().(message.SubscribeInitializer).SubscribeInitialize(topic))
	for p := range int32(3) { // each broker leads a partition for short delays
		require.NoError(t, c.MoveTopicPartition(topic+"_retry.100", p, p))
	}
	first, second, other := open(t, c), open(t, c), open(t, c)
	messages, atOther := subscribe(t, first, topic), subscribe(t, other, topic, brokers.WithGroup("mail"))
	delayed := func(id string, d time.Duration) {
		m := keyed(id, id)
		envelope.SetDelay(m, d)
		require.NoError(t, second.Publisher().Publish(topic, m))
	}
	for _, id := range []string{"1", "2", "3", "4", "5", "6", "7"} { // to every partition
		delayed(id, time.Hour)
		delayed(id, 300*time.Millisecond)
	}
	// Of the seven that are due soon, one fails in both groups. By now the clock of every leader has been probed.
	for range 7 {
		m := receive(t, messages)
		if m.UUID == "7" {
			origin, _ := envelope.OriginFrom(m.Context())
			require.NoError(t, first.Reschedule(t.Context(), *origin, m.Copy(), 2*time.Hour))
		}
		m.Ack()
	}
	for range 7 {
		m := receive(t, atOther)
		if m.UUID == "7" {
			origin, _ := envelope.OriginFrom(m.Context())
			require.NoError(t, other.Reschedule(t.Context(), *origin, m.Copy(), time.Hour))
		}
		m.Ack()
	}
	waitForDepths(t, first, topic, map[string]int64{" delayed": 7, "billing retry": 1})
	waitForDepths(t, other, topic, map[string]int64{" delayed": 7, "mail retry": 1})
	waitForDepths(t, second, topic, map[string]int64{" delayed": 7}) // which only publishes
	subscribe(t, second, topic)
	waitForDepths(t, second, topic, map[string]int64{" delayed": 7, "billing retry": 1})
}

// With order=key, messages behind a retry are also counted as waiting.
func TestDepths_OfParkedMessages(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := open(t, c, "order=key", "concurrency=4", "commit-interval=20ms")
	topic := name("orders")
	counted := make(chan struct{})
	messages := retriedUntil(t, b, subscribe(t, b, topic), "a1", 2*time.Second, counted)
	require.NoError(t, b.Publisher().Publish(topic, keyed("a1", "a")))
	require.NoError(t, b.Publisher().Publish(topic, keyed("a2", "a"), keyed("a3", "a"), keyed("b1", "b")))
	receiveID(t, messages, "b1").Ack()
	waitForDepths(t, b, topic, map[string]int64{"billing retry": 1, "billing parked": 2})

	close(counted)
	receiveID(t, messages, "a1").Ack()
	m := receiveID(t, messages, "a2")
	waitForDepths(t, b, topic, map[string]int64{"billing parked": 2})
	m.Ack()
	receiveID(t, messages, "a3").Ack()
	waitForDepths(t, b, topic, map[string]int64{})
}
