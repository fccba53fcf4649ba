package kafka_test

import (
	"errors"
	"testing"

	"github.com/IBM/sarama"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/watermill/kafka"
	"github.com/redrive-go/redrive/envelope"
)

// record returns a producer's message as a consumer receives it.
func record(t *testing.T, p *sarama.ProducerMessage) *sarama.ConsumerMessage {
	t.Helper()
	r := &sarama.ConsumerMessage{Topic: p.Topic, Partition: 3, Offset: 7}
	for i := range p.Headers {
		r.Headers = append(r.Headers, &p.Headers[i])
	}
	for to, from := range map[*[]byte]sarama.Encoder{&r.Key: p.Key, &r.Value: p.Value} {
		if from != nil {
			var err error
			*to, err = from.Encode()
			require.NoError(t, err)
		}
	}
	return r
}

// Messages to and from a plain Watermill service are compatible.
func TestMarshaler_IsCompatibleWithWatermills(t *testing.T) {
	m := message.NewMessage("id-1", []byte("payload"))
	m.Metadata["customer"] = "7"
	for _, from := range []wkafka.Marshaler{kafka.Marshaler{}, wkafka.DefaultMarshaler{}} {
		for _, to := range []wkafka.Unmarshaler{kafka.Marshaler{}, wkafka.DefaultMarshaler{}} {
			p, err := from.Marshal("orders", m)
			require.NoError(t, err)
			require.Nil(t, p.Key, "an empty key would send all records to one partition")
			got, err := to.Unmarshal(record(t, p))
			require.NoError(t, err)
			require.True(t, m.Equals(got), "from %T to %T", from, to)
		}
	}
}

// watermill-kafka's default marshaler loses the key, refuses its own header, and does not support null values.
func TestMarshaler_KeepsKeysAndNulls(t *testing.T) {
	for name, c := range map[string]struct {
		record   *sarama.ConsumerMessage
		key      []byte
		metadata message.Metadata
	}{
		"key": {&sarama.ConsumerMessage{Key: []byte("c-1"), Value: []byte("x")}, []byte("c-1"), message.Metadata{
			envelope.KeyKafkaKey: "c-1",
		}},
		"empty key": {
			&sarama.ConsumerMessage{Key: []byte{}, Value: []byte{}},
			[]byte{},
			message.Metadata{envelope.KeyKafkaKey: ""},
		},
		"tombstone": {&sarama.ConsumerMessage{Key: []byte("c-1")}, []byte("c-1"), message.Metadata{
			envelope.KeyKafkaKey: "c-1", "x-kafka-tombstone": "true",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := kafka.Marshaler{}.Unmarshal(c.record)
			require.NoError(t, err)
			require.Equal(t, c.metadata, m.Metadata)
			require.NotEmpty(t, m.UUID, "the same at each delivery")
			m.Metadata[wkafka.UUIDHeaderKey] = "with the header of a bridge"
			p, err := kafka.Marshaler{}.Marshal("orders", m)
			require.NoError(t, err)
			got := record(t, p)
			require.Equal(t, c.key, got.Key)
			require.Equal(t, c.record.Value == nil, got.Value == nil)
			again, err := kafka.Marshaler{}.Unmarshal(got)
			require.NoError(t, err)
			require.Equal(t, m.UUID, again.UUID)
		})
	}
}

// picky is a user's marshaler that cannot read every record.
type picky struct{ wkafka.DefaultMarshaler }

func (p picky) Unmarshal(r *sarama.ConsumerMessage) (*message.Message, error) {
	if string(r.Value) == "bad" {
		return nil, errors.New("not encrypted")
	}
	m, err := p.DefaultMarshaler.Unmarshal(r)
	if err == nil {
		m.Metadata["read-by"] = "picky"
	}
	return m, err
}

// watermill-kafka never gets past a record that its marshaler refuses, so such a record is delivered unchanged.
func TestMarshaler_OfTheUserMayFail(t *testing.T) {
	t.Parallel()
	delays, err := memory.New(brokers.Config{})
	require.NoError(t, err)
	b, err := kafka.New(t.Context(), kafka.Config{
		Broker: brokers.Config{URL: urlOf(cluster(t), "group=billing")}, Marshaler: picky{}, Delays: delays,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(b.Close(), delays.Close())) })
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("1", []byte("bad")),
		message.NewMessage("2", []byte("good"))))
	messages, err := b.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	m := <-messages
	require.Equal(t, "bad", string(m.Payload))
	require.Empty(t, m.Metadata["read-by"])
	origin, ok := envelope.OriginFrom(m.Context())
	require.True(t, ok)
	require.EqualValues(t, 0, *origin.Offset)
	m.Ack()
	m = <-messages
	require.Equal(t, "picky", m.Metadata["read-by"])
	m.Ack()
}

func TestOpen_NamesFaults(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"watermill+kafka://localhost:1/orders":                   "the URL has a path",
		"watermill+kafka://":                                     "the URL has no broker",
		"watermill+kafka://user:pw-secret@127.0.0.1:1?group=one": "watermill+kafka://user:xxxxx@127.0.0.1:1",
	} {
		_, err := brokers.Open(t.Context(), url)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "pw-secret")
	}
}

func TestSubscribe_NeedsAGroup(t *testing.T) {
	b, err := brokers.Open(t.Context(), urlOf(cluster(t), ""))
	require.NoError(t, err)
	defer b.Close()
	_, err = b.Subscriber().Subscribe(t.Context(), "orders")
	require.ErrorIs(t, err, brokers.ErrUnsupported)
	require.ErrorContains(t, err, "group=name")
}
