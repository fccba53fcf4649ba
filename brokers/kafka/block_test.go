package kafka_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/envelope"
)

func die(t *testing.T, b *kafka.Broker, m *message.Message) envelope.Origin {
	t.Helper()
	origin, _ := envelope.OriginFrom(m.Context())
	require.NoError(t, b.DeadLetter(t.Context(),
		&envelope.DeadLetter{Message: m.Copy(), Origin: *origin, Reason: "exhausted"}))
	m.Ack()
	return *origin
}

// With order-dead=block, a dead letter blocks the later messages of its key, even across a restart, until it is
// redriven successfully. Other keys continue.
func TestOrder_DeadLetterBlocksItsKeyUntilRedriven(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	params := []string{"order=key", "order-dead=block", "commit-interval=20ms"}
	b := open(t, c, params...)
	topic := name("orders")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, keyed("a1", "a"), keyed("a2", "a"), keyed("b1", "b"),
		keyed("a3", "a")))

	origin := die(t, b, receiveID(t, messages, "a1"))
	receiveID(t, messages, "b1").Ack()
	require.NoError(t, b.Close())

	b = open(t, c, params...)
	messages = subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, keyed("a4", "a"), keyed("b2", "b")))
	receiveID(t, messages, "b2").Ack()

	require.NoError(t, b.Reschedule(t.Context(), origin, keyed("a1", "a"), 0))
	m := receiveID(t, messages, "a1")
	again, _ := envelope.OriginFrom(m.Context())
	require.NoError(t, b.Reschedule(t.Context(), *again, m.Copy(), 200*time.Millisecond), "fails once more")
	m.Ack()
	for _, id := range []string{"a1", "a2", "a3", "a4"} {
		receiveID(t, messages, id).Ack()
	}
	require.NoError(t, b.Publisher().Publish(topic, keyed("a5", "a")))
	receiveID(t, messages, "a5").Ack()
}

// A key that a dead letter blocks continues once the service is deployed with order-dead=continue. It used to stay
// blocked, and no log named it.
func TestOrder_BlockedKeyContinuesWithoutBlocking(t *testing.T) {
	t.Parallel()
	c, topic := cluster(t), name("orders")
	b := open(t, c, "order=key", "order-dead=block", "commit-interval=20ms")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, keyed("a1", "a"), keyed("a2", "a"), keyed("b1", "b")))
	die(t, b, receiveID(t, messages, "a1"))
	receiveID(t, messages, "b1").Ack()
	require.NoError(t, b.Close())

	b = open(t, c, "order=key", "commit-interval=20ms")
	messages = subscribe(t, b, topic)
	receiveID(t, messages, "a2").Ack()
	require.NoError(t, b.Close())

	// The same without a message behind the dead letter: the next one used to be parked although nothing blocks its key.
	topic = name("orders")
	b = open(t, c, "order=key", "order-dead=block", "commit-interval=20ms")
	messages = subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, keyed("a1", "a")))
	die(t, b, receiveID(t, messages, "a1"))
	require.NoError(t, b.Close())

	b = open(t, c, "order=key")
	require.NoError(t, b.Publisher().Publish(topic, keyed("a2", "a")))
	receiveID(t, subscribe(t, b, topic), "a2").Ack()
	ends, err := administer(t, c).ListEndOffsets(t.Context(), topic+".billing_retry.parked")
	require.NoError(t, err)
	end, _ := ends.Lookup(topic+".billing_retry.parked", 0)
	require.EqualValues(t, 1, end.Offset, "only the record of the dead letter")
}

// If a dead letter is discarded instead of redriven, its key is released manually. By default a dead letter does not
// block its key.
func TestOrder_ReleaseAndContinue(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	for mode, release := range map[string]bool{"block": true, "continue": false} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			b := open(t, c, "order=key", "concurrency=4", "order-dead="+mode)
			topic := name("orders")
			messages := subscribe(t, b, topic)
			require.NoError(t, b.Publisher().Publish(topic, keyed("a1", "a"), keyed("a2", "a"), keyed("b1", "b"),
				keyed("a3", "a")))
			got := map[string]*message.Message{}
			for range 2 { // of both keys, in any order
				m := receive(t, messages)
				got[m.UUID] = m
			}
			got["b1"].Ack()
			die(t, b, got["a1"])
			if release {
				select {
				case m := <-messages:
					require.FailNow(t, "the key should be blocked", m.UUID)
				case <-time.After(300 * time.Millisecond): // there is no event to wait for
				}
				require.NoError(t, b.Release(t.Context(), topic, "billing", []byte("a")))
			}
			receiveID(t, messages, "a2").Ack()
			receiveID(t, messages, "a3").Ack()
		})
	}
}

// When partitions were added after the dead letter, its key could not be released: the request went to the partition
// that the key has now.
func TestOrder_ReleaseAfterTheTopicGrew(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := open(t, c, "order=key", "order-dead=block", "commit-interval=20ms")
	topic := name("orders")
	messages := subscribe(t, b, topic)
	keys := []string{"a", "b", "c", "d"} // some of them move
	for _, key := range keys {
		require.NoError(t, b.Publisher().Publish(topic, keyed(key+"1", key)))
		die(t, b, receiveID(t, messages, key+"1"))
		require.NoError(t, b.Publisher().Publish(topic, keyed(key+"2", key)))
	}
	waitForDepths(t, b, topic, map[string]int64{"billing parked": 8}) // with the locks
	addPartitions(t, c, topic, []string{"order=key", "order-dead=block"})
	for _, key := range keys {
		require.NoError(t, b.Release(t.Context(), topic, "billing", []byte(key)))
		receiveID(t, messages, key+"2").Ack()
	}
}
