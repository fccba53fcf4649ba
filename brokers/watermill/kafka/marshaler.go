package kafka

import (
	"strconv"

	"github.com/IBM/sarama"
	wkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// Marshaler writes the same as watermill-kafka's DefaultMarshaler, plus the key of the record, and reads every record.
type Marshaler struct{}

var _ wkafka.MarshalerUnmarshaler = Marshaler{}

// keyTombstone is "true" on a record whose value is null, as in package brokers/kafka.
const keyTombstone = "x-kafka-tombstone"

// Marshal takes the key from metadata x-kafka-key. Without one the record has none, and goes to any partition.
func (Marshaler) Marshal(topic string, m *message.Message) (*sarama.ProducerMessage, error) {
	headers := make([]sarama.RecordHeader, 0, len(m.Metadata)+1)
	headers = append(headers, header(wkafka.UUIDHeaderKey, m.UUID))
	for name, value := range m.Metadata {
		switch name {
		case wkafka.UUIDHeaderKey, envelope.KeyKafkaKey, keyTombstone:
		default:
			headers = append(headers, header(name, value))
		}
	}
	r := &sarama.ProducerMessage{Topic: topic, Headers: headers}
	if len(m.Payload) > 0 || m.Metadata[keyTombstone] == "" {
		r.Value = sarama.ByteEncoder(append([]byte{}, m.Payload...))
	}
	if key, ok := m.Metadata[envelope.KeyKafkaKey]; ok {
		r.Key = sarama.ByteEncoder(key)
	}
	return r, nil
}

func header(name, value string) sarama.RecordHeader {
	return sarama.RecordHeader{Key: []byte(name), Value: []byte(value)}
}

// Unmarshal never fails. A record that is not Watermill's has an id that follows from its position.
func (Marshaler) Unmarshal(r *sarama.ConsumerMessage) (*message.Message, error) {
	uuid := ""
	metadata := make(message.Metadata, len(r.Headers)+1)
	for _, h := range r.Headers {
		if string(h.Key) == wkafka.UUIDHeaderKey {
			uuid = string(h.Value)
			continue
		}
		metadata[string(h.Key)] = string(h.Value)
	}
	if uuid == "" {
		uuid = envelope.StableID(&envelope.Origin{
			Broker: Scheme, Topic: r.Topic,
			Position:    strconv.FormatInt(int64(r.Partition), 10) + "/" + strconv.FormatInt(r.Offset, 10),
			Incarnation: strconv.FormatInt(r.Timestamp.UnixMilli(), 10), // sarama has neither the topic's id nor an epoch
		})
	}
	if r.Key != nil {
		metadata[envelope.KeyKafkaKey] = string(r.Key)
	}
	if r.Value == nil {
		metadata[keyTombstone] = "true"
	}
	m := message.NewMessage(uuid, r.Value)
	m.Metadata = metadata
	return m, nil
}

// tolerant delivers a record that a user's Unmarshaler refuses as it is: watermill-kafka would never get past it. The
// handler then fails to decode it, and the pipeline makes a dead letter of it.
type tolerant struct {
	wkafka.Unmarshaler

	refused func(r *sarama.ConsumerMessage, err error)
}

// Unmarshal implements watermill-kafka's Unmarshaler.
func (t tolerant) Unmarshal(r *sarama.ConsumerMessage) (*message.Message, error) {
	m, err := t.Unmarshaler.Unmarshal(r)
	if err == nil {
		return m, nil
	}
	t.refused(r, err)
	return Marshaler{}.Unmarshal(r)
}
