package kafka_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// produce writes raw records, as any client can.
func produce(t testing.TB, c *kfake.Cluster, records ...*sarama.ProducerMessage) {
	t.Helper()
	cfg := sarama.NewConfig()
	cfg.Producer.Return.Successes = true
	cfg.Producer.Partitioner = sarama.NewManualPartitioner
	p, err := sarama.NewSyncProducer(c.ListenAddrs(), cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	require.NoError(t, p.SendMessages(records))
}

// consumeRaw reads n records of a topic's first partition with a plain client.
func consumeRaw(t testing.TB, c *kfake.Cluster, topic string, n int) []*sarama.ConsumerMessage {
	t.Helper()
	return consumePartition(t, c, topic, 0, n)
}

func consumePartition(t testing.TB, c *kfake.Cluster, topic string, partition int32, n int) []*sarama.ConsumerMessage {
	t.Helper()
	consumer, err := sarama.NewConsumer(c.ListenAddrs(), sarama.NewConfig())
	require.NoError(t, err)
	defer func() { require.NoError(t, consumer.Close()) }()
	p, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	var records []*sarama.ConsumerMessage
	for len(records) < n {
		select {
		case r := <-p.Messages():
			records = append(records, r)
		case <-time.After(patience):
			require.FailNow(t, "records are missing", "%s has %d of %d", topic, len(records), n)
		}
	}
	return records
}

func raw(name string, value []byte) sarama.RecordHeader {
	return sarama.RecordHeader{Key: []byte(name), Value: value}
}

// A record with any content reaches the handler and survives a retry and a dead letter byte for byte, and the offset
// advances. The cases share one subscription, so they run one after the other.
//
//nolint:tparallel // see above
func TestRecords_AnyRecordSurvivesRetryAndDeadLetter(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := open(t, c)
	topic := name("records")
	messages := subscribe(t, b, topic)
	at := time.UnixMilli(1_700_000_000_123)

	corpus := map[string]*sarama.ProducerMessage{
		"malformed": {Value: sarama.StringEncoder(`{"message_id":`)},
		"tombstone": {Key: sarama.StringEncoder("k")},
		"empty":     {Key: sarama.StringEncoder("k"), Value: sarama.ByteEncoder{}},
		"empty key": {Key: sarama.ByteEncoder{}, Value: sarama.StringEncoder("v")},
		"binary":    {Key: sarama.ByteEncoder{0, 255, 1}, Value: sarama.ByteEncoder{0, 1, 0xff, 0xfe, '\n'}},
		"1 MiB":     {Value: sarama.ByteEncoder(bytes.Repeat([]byte{7}, 1<<20-200))},
		"headers": {Value: sarama.StringEncoder("v"), Headers: []sarama.RecordHeader{
			raw("twice", []byte("1")), raw("once", []byte{0xff, 0}), raw("twice", []byte("2")), raw("null", nil),
			raw("", []byte("no name")), raw("\xff\xfe", []byte("odd name")), raw("empty", []byte{}),
		}},
		"null header": {Value: sarama.StringEncoder("v"), Headers: []sarama.RecordHeader{raw("null", nil)}},
		"hostile": {Value: sarama.StringEncoder("v"), Headers: []sarama.RecordHeader{
			raw("x-kafka-partition", []byte("99")), raw("x-kafka-offset", []byte("-1")), raw("x-kafka-wait", []byte("1e99")),
			raw("x-not-before", []byte("99999999999999999")), raw("x-kafka-headers", []byte("{")),
			raw("x-retry-count", []byte("-1")), raw("x-kafka-control", nil), raw("x-kafka-control", []byte("tiers")),
		}},
	}
	for title, record := range corpus {
		t.Run(title, func(t *testing.T) {
			record.Topic, record.Timestamp = topic, at
			produce(t, c, record)

			first := receive(t, messages)
			origin, ok := envelope.OriginFrom(first.Context())
			require.True(t, ok)
			require.True(t, origin.Timestamp.Equal(at))
			require.NotEmpty(t, first.UUID, "StableID")
			require.NoError(t, b.Reschedule(t.Context(), *origin, first.Copy(), 0))
			first.Ack()

			second := receive(t, messages)
			require.Equal(t, first.UUID, second.UUID)
			require.Equal(t, first.Payload, second.Payload)
			for _, ours := range []string{
				"x-kafka-partition", "x-kafka-offset", "x-kafka-wait", "x-not-before",
				"x-kafka-headers", "x-kafka-control",
			} {
				if title == "hostile" { // headers that this driver uses for its own retries
					delete(first.Metadata, ours)
				}
			}
			require.Equal(t, first.Metadata, second.Metadata)
			again, _ := envelope.OriginFrom(second.Context())
			require.Equal(t, origin, again, "the original position, not that in the retry topic")

			require.NoError(t, b.DeadLetter(t.Context(), &envelope.DeadLetter{
				Message: second, Origin: *again, Reason: "permanent", Err: envelope.Error{Message: strings.Repeat("e", 1000)},
			}))
			second.Ack()
		})
	}

	dead := consumeRaw(t, c, topic+".billing_dlq", len(corpus))
	sent := consumeRaw(t, c, topic, len(corpus))
	for i, d := range dead {
		require.Equal(t, sent[i].Key, d.Key)
		require.Equal(t, sent[i].Key == nil, d.Key == nil)
		require.Equal(t, sent[i].Value, d.Value)
		require.Equal(t, sent[i].Value == nil, d.Value == nil, "a tombstone remains a tombstone")
		for _, h := range sent[i].Headers {
			if !strings.HasPrefix(string(h.Key), "x-") {
				require.Contains(t, d.Headers, h)
			}
		}
		require.Contains(t, d.Headers, &sarama.RecordHeader{Key: []byte("x-kafka-offset"), Value: fmt.Append(nil, i)})
		require.Contains(t, d.Headers, &sarama.RecordHeader{
			Key:   []byte("x-kafka-timestamp"),
			Value: fmt.Append(nil, at.UnixMilli()),
		})
		require.Contains(t, d.Headers, &sarama.RecordHeader{Key: []byte("x-consumer"), Value: []byte("billing")})
	}
}

// A retry and a dead letter keep the partition and the key of their record, however the producer chose them, even if
// the message has lost its metadata, for example in an edit.
func TestRecords_RetryKeepsPartitionAndKey(t *testing.T) {
	t.Parallel()
	c := cluster(t, kfake.DefaultNumPartitions(3))
	b := open(t, c)
	topic := name("orders")
	messages := subscribe(t, b, topic)
	for p := range int32(3) {
		produce(t, c, &sarama.ProducerMessage{
			Topic: topic, Partition: p, Key: sarama.StringEncoder("one key"),
			Value: sarama.StringEncoder("v"),
		})
		m := receive(t, messages)
		m.Ack()
		bare := newMessage(m.UUID, "v")
		origin, _ := envelope.OriginFrom(m.Context())
		require.Equal(t, p, *origin.Partition)
		require.NoError(t, b.Reschedule(t.Context(), *origin, bare, 0))
		require.NoError(t, b.DeadLetter(t.Context(),
			&envelope.DeadLetter{Message: bare, Origin: *origin, Reason: "permanent"}))
		again := receive(t, messages)
		again.Ack()
		require.Equal(t, "one key", again.Metadata[envelope.KeyKafkaKey])
		for _, waits := range []string{topic + ".billing_retry.100", topic + ".billing_dlq"} {
			r := consumePartition(t, c, waits, p, 1)[0]
			require.Equal(t, "one key", string(r.Key), waits)
		}
	}
}

// A message that a handler republishes keeps the key, and the headers that a map of strings cannot represent.
func TestRecords_RepublishedKeepsKeyAndHeaders(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := open(t, c)
	from, to := name("from"), name("to")
	messages := subscribe(t, b, from)
	headers := []sarama.RecordHeader{raw("a", []byte("1")), raw("a", nil), raw("b", []byte("x")), raw("b", []byte("y"))}
	produce(t, c, &sarama.ProducerMessage{Topic: from, Key: sarama.ByteEncoder{0xff}, Headers: headers})

	m := receive(t, messages)
	m.Ack()
	copied := m.Copy()
	copied.Metadata["b"] = "changed"
	require.NoError(t, b.Publisher().Publish(to, copied))
	r := consumeRaw(t, c, to, 1)[0]
	require.Equal(t, []byte{0xff}, r.Key)
	require.Nil(t, r.Value)
	var got []string
	for _, h := range r.Headers {
		got = append(got, fmt.Sprintf("%s=%s/%t", h.Key, h.Value, h.Value == nil))
	}
	require.ElementsMatch(t, []string{
		"_watermill_message_uuid=" + m.UUID + "/false", "a=1/false", "a=/true",
		"b=changed/false",
	}, got)
}

func TestPublish_TooLargeNamesTheRemedy(t *testing.T) {
	t.Parallel()
	b := open(t, cluster(t), "max-message-bytes=2KiB")
	err := b.Publisher().Publish(name("large"), newMessage("m", strings.Repeat("x", 2048)))
	require.ErrorIs(t, err, brokers.ErrTooLarge)
	require.ErrorContains(t, err, "raise max-message-bytes here and max.message.bytes on the topic", "its name there")
}

// A dead letter topic that an operator created accepts no larger records than the main topic: the stack trace is
// dropped, and a letter that is still too large is refused, so that the pipeline's next sink takes it.
func TestDeadLetter_DropsTheTraceThenRefuses(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := open(t, c, "max-message-bytes=200KiB")
	topic := name("orders")
	messages := subscribe(t, b, topic)

	die := func(payload, trace int) error {
		require.NoError(t, b.Publisher().Publish(topic, newMessage("m", strings.Repeat("p", payload))))
		m := receive(t, messages)
		origin, _ := envelope.OriginFrom(m.Context())
		m.Ack()
		failed := m.Copy()
		failed.Metadata[envelope.KeyErrorTrace] = strings.Repeat("t", trace)
		failed.Metadata["filler"] = strings.Repeat("f", trace)
		return b.DeadLetter(t.Context(), &envelope.DeadLetter{Message: failed, Origin: *origin, Reason: "permanent"})
	}
	require.NoError(t, die(100<<10, 100<<10))
	require.ErrorIs(t, die(190<<10, 150<<10), brokers.ErrTooLarge)
	require.NoError(t, die(150<<10, 100<<10))

	records := consumeRaw(t, c, topic+".billing_dlq", 2)
	trace := func(i int) string {
		for _, h := range records[i].Headers {
			if string(h.Key) == envelope.KeyErrorTrace {
				return string(h.Value)
			}
		}
		return ""
	}
	require.Len(t, trace(0), 100<<10, "fits")
	require.Empty(t, trace(1), "the trace was dropped")
	require.Len(t, records[1].Value, 150<<10)
}

// A retry without room for its error loses the trace and then the texts, as on every broker, but not the message.
func TestReschedule_DropsTheTextsOfItsError(t *testing.T) {
	t.Parallel()
	b := open(t, cluster(t), "max-message-bytes=200KiB")
	topic := name("orders")
	messages := subscribe(t, b, topic)
	payload := strings.Repeat("p", 190<<10)
	for id, large := range map[string]string{"1": envelope.KeyErrorTrace, "2": envelope.KeyErrorMessage} {
		require.NoError(t, b.Publisher().Publish(topic, newMessage(id, payload)))
		m := receiveID(t, messages, id)
		m.Metadata[large] = strings.Repeat("t", 150<<10)
		m.Metadata[envelope.KeyErrorClass] = "timeout"
		m.Metadata["tenant"] = "acme"
		retryIn(t, b, m, 0)
		again := receiveID(t, messages, id)
		again.Ack()
		require.Equal(t, payload, string(again.Payload))
		require.Equal(t, message.Metadata{"tenant": "acme", envelope.KeyErrorClass: "timeout"}, again.Metadata)
	}
}
