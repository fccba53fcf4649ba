package kafka_test

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// If a topic is deleted and recreated, or another cluster has one of the same name, positions start over. A foreign
// message used to get the id of an earlier one at the same position, so that the idempotency guard acked it unhandled,
// and the store merged its dead letter into a resolved one. Retries keep the id.
func TestIdentity_PositionsThatStartOver(t *testing.T) {
	t.Parallel()
	c, elsewhere := cluster(t), cluster(t)
	topic := name("orders")
	seen := map[string]string{}
	for i, where := range []string{"first", "recreated", "on another cluster"} {
		on := c
		if where == "on another cluster" {
			on = elsewhere
		}
		if i == 1 {
			_, err := administer(t, c).DeleteTopics(t.Context(), topic)
			require.NoError(t, err)
		}
		b := open(t, on)
		messages := subscribe(t, b, topic)
		produce(t, on, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(where)})
		m := receive(t, messages)
		require.Equal(t, where, string(m.Payload))
		origin, _ := envelope.OriginFrom(m.Context())
		require.Equal(t, "0/0", origin.Position)
		require.NotContains(t, seen, m.UUID, "%s has the id of %s", where, seen[m.UUID])
		seen[m.UUID] = where

		retryIn(t, b, m, 0)
		again := receiveID(t, messages, m.UUID)
		second, _ := envelope.OriginFrom(again.Context())
		require.Equal(t, origin, second)
		again.Ack()
		require.NoError(t, b.Close())
	}
}

// If the topic is deleted and recreated while a member that knows the old one gets its partition, that member's client
// requests the deleted topic and is refused forever. Another client has to replace it.
func TestIdentity_RecreatedBeforeTheFirstRecord(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	operator := administer(t, c)
	_, err := operator.CreateTopic(t.Context(), 1, 1, nil, topic)
	require.NoError(t, err)
	again := sync.OnceFunc(func() {
		if _, err := operator.DeleteTopics(t.Context(), topic); err != nil {
			t.Error(err)
		}
		if _, err := operator.CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
			t.Error(err)
		}
	})
	c.ControlKey(kmsg.OffsetFetch.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.SleepControl(again) // the member has its partition, but has not started reading it
		return nil, nil, false
	})
	b := open(t, c)
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Joined(t.Context()))
	produce(t, c, &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("1")})
	receive(t, messages).Ack()
}

// When partitions are added to a topic whose retry topics may not grow because only an operator creates topics, a
// message on a new partition used to be neither retried nor dead-lettered, and its partition stopped.
func TestTopic_GrowsWhereRetryTopicsMayNot(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	topic := name("orders")
	operator := open(t, c)
	require.NoError(t, operator.Apply(t.Context(), operator.Plan(topic)))
	b := open(t, c, "auto-create=false")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Joined(t.Context()))
	_, err := administer(t, c).UpdatePartitions(t.Context(), 3, topic)
	require.NoError(t, err)
	other := open(t, c, "auto-create=false") // a rebalance finds them at once
	subscribe(t, other, topic)
	require.NoError(t, other.Joined(t.Context()))
	require.NoError(t, other.Close())

	produce(t, c, &sarama.ProducerMessage{Topic: topic, Partition: 2, Value: sarama.StringEncoder("1")})
	m := receive(t, messages)
	origin, _ := envelope.OriginFrom(m.Context())
	require.EqualValues(t, 2, *origin.Partition)
	retryIn(t, b, m, 10*time.Millisecond)
	m = receive(t, messages)
	again, _ := envelope.OriginFrom(m.Context())
	require.Equal(t, origin, again)
	deadLetter(t, b, m)
	findings, err := b.Check(t.Context(), b.Plan(topic))
	require.NoError(t, err)
	require.NotEmpty(t, findings, "the operator is informed")

	// Once the operator has added partitions, retries are stored there, but they used to be read by no consumer.
	for _, planned := range b.Plan(topic).Topics {
		if planned.Like != "" {
			_, err = administer(t, c).UpdatePartitions(t.Context(), 3, planned.Name)
			require.NoError(t, err)
		}
	}
	produce(t, c,
		&sarama.ProducerMessage{Topic: topic, Partition: 2, Value: sarama.StringEncoder("2")},
		&sarama.ProducerMessage{ // it also checks periodically
			Topic:   b.Config().Naming.For(topic, "").Delayed(100 * time.Millisecond),
			Headers: []sarama.RecordHeader{{Key: []byte("x-kafka-control"), Value: []byte("tiers")}},
		},
	)
	retryIn(t, b, receive(t, messages), 10*time.Millisecond)
	m = receive(t, messages)
	require.Equal(t, "2", string(m.Payload))
	m.Ack()
}

// A record above our own size limit can be neither retried nor parked. It blocks nothing: the pipeline learns that
// retrying is pointless, and with order=key the message is handled at once.
func TestTooLarge_ForeignRecordStopsNothing(t *testing.T) {
	t.Parallel()
	for title, params := range map[string][]string{"order none": nil, "order of keys": {"order=key", "concurrency=4"}} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			c := cluster(t)
			b := open(t, c, append(params, "max-message-bytes=2KiB")...)
			topic := name("orders")
			messages := subscribe(t, b, topic)
			large := sarama.ByteEncoder(bytes.Repeat([]byte("x"), 400<<10))
			produce(t, c, &sarama.ProducerMessage{
				Topic: topic, Key: sarama.StringEncoder("a"),
				Value: sarama.StringEncoder("a1"),
			})
			m := receive(t, messages)
			retryIn(t, b, m, 500*time.Millisecond)
			produce(t, c,
				&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("a"), Value: large},
				&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("b"), Value: sarama.StringEncoder("b1")},
			)
			got := map[string]bool{}
			for range 3 {
				m := receive(t, messages)
				if len(m.Payload) == len(large) {
					origin, _ := envelope.OriginFrom(m.Context())
					require.ErrorIs(t, b.Reschedule(t.Context(), *origin, m.Copy(), 0), brokers.ErrTooLarge)
					letter := &envelope.DeadLetter{Message: m.Copy(), Origin: *origin, Reason: "exhausted"}
					require.ErrorIs(t, b.DeadLetter(t.Context(), letter), brokers.ErrTooLarge)
				}
				got[string(m.Payload[:min(2, len(m.Payload))])] = true
				m.Ack()
			}
			require.Equal(t, map[string]bool{"a1": true, "xx": true, "b1": true}, got)
		})
	}
}

// A topic that is recreated has messages at positions that messages of the old one had. With order=key, one of them was
// treated as the message of its key that waited there for its retry or was parked, and settled without a handler.
func TestIdentity_RecreatedWhileMessagesOfTheKeyWait(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	params := []string{"order=key", "concurrency=4", "commit-interval=20ms"}
	b := open(t, c, params...)
	topic := name("orders")
	messages := subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, keyed("a1", "a"), keyed("a2", "a")))
	retryIn(t, b, receiveID(t, messages, "a1"), 3*time.Second)
	waitStored(t, c, parkingTopic(t, b, topic), 1)
	require.NoError(t, b.Close())
	_, err := administer(t, c).DeleteTopics(t.Context(), topic)
	require.NoError(t, err)

	b = open(t, c, params...)
	messages = subscribe(t, b, topic)
	require.NoError(t, b.Publisher().Publish(topic, keyed("a3", "a"), keyed("a4", "a")))
	for _, id := range []string{"a1", "a2", "a3", "a4"} {
		receiveID(t, messages, id).Ack()
	}
}
