package kafka

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// Scheme is the URL scheme of this driver, and Origin.Broker of its deliveries.
const Scheme = "kafka"

// anyPartition leaves the choice to the partitioner.
const anyPartition = -1

// newRecord renders a message for a topic. It copies the metadata and shares the payload, which callers do not change.
func newRecord(topic string, o *driver.Outgoing) *kgo.Record {
	m, md := o.Message, o.Metadata()
	r := &kgo.Record{Topic: topic, Headers: writeHeaders(md, m.UUID), Partition: anyPartition}
	if key, ok := md[envelope.KeyKafkaKey]; ok {
		r.Key = []byte(key)
	}
	if len(m.Payload) > 0 || md[headerTombstone] == "" {
		if r.Value = m.Payload; r.Value == nil {
			r.Value = []byte{}
		}
	}
	return r
}

// newWaiting renders a message for the retry or dead letter topic of a consumer, with its origin.
func newWaiting(topic string, o *driver.Outgoing, origin *envelope.Origin) *kgo.Record {
	r := newRecord(topic, o)
	if origin.Partition != nil && *origin.Partition >= 0 {
		r.Partition = *origin.Partition
	}
	kept := r.Headers[:0]
	for _, h := range r.Headers {
		if h.Key == headerUUID || !isWaitHeader(h.Key) {
			kept = append(kept, h)
		}
	}
	r.Headers = kept
	if r.Key == nil {
		r.Key = origin.Key
	}
	r.Headers = append(r.Headers, originHeaders(origin)...)
	return r
}

// originHeaders renders the position and the consumer of a message.
func originHeaders(o *envelope.Origin) []kgo.RecordHeader {
	headers := []kgo.RecordHeader{header(envelope.KeyTopic, o.Topic)}
	if o.Consumer != "" {
		headers = append(headers, header(envelope.KeyConsumer, o.Consumer))
	}
	if o.Partition != nil {
		headers = append(headers, header(headerPartition, strconv.FormatInt(int64(*o.Partition), 10)))
	}
	if o.Offset != nil {
		headers = append(headers, header(headerOffset, strconv.FormatInt(*o.Offset, 10)))
	}
	if where, _, other := strings.Cut(o.Position, ":"); other {
		headers = append(headers, header(headerSource, where))
	}
	if o.Incarnation != "" {
		headers = append(headers, header(headerIncarnation, o.Incarnation))
	}
	if !o.Timestamp.IsZero() {
		headers = append(headers, header(headerTimestamp, strconv.FormatInt(o.Timestamp.UnixMilli(), 10)))
	}
	return headers
}

// origin returns the origin of a record. incarnation is that of the topic it was read from. A waiting record was read
// from a retry topic, where headers hold its position on the main topic; missing values are taken from the record
// itself.
func (s *subscription) origin(r *kgo.Record, incarnation string, waiting bool) *envelope.Origin {
	topic := s.q.Topic
	partition, offset, at := r.Partition, r.Offset, r.Timestamp
	where := topic
	if waiting {
		p, okP := number(r.Headers, headerPartition)
		o, okO := number(r.Headers, headerOffset)
		source, elsewhere := find(r.Headers, headerSource)
		switch {
		case !okP || !okO || p > math.MaxInt32:
			where = r.Topic // a separate position: it must not identify another message of the topic
		case elsewhere:
			partition, offset, where = int32(p), o, source //nolint:gosec // G115: at most MaxInt32, see above
		default:
			partition, offset = int32(p), o //nolint:gosec // G115: at most MaxInt32, see above
		}
		if where != r.Topic {
			incarnation, _ = find(r.Headers, headerIncarnation)
		}
		if ms, ok := number(r.Headers, headerTimestamp); ok {
			at = time.UnixMilli(ms)
		}
	}
	o := &envelope.Origin{
		Broker: Scheme, Topic: topic, Consumer: s.q.Group,
		Key: r.Key, Partition: &partition, Offset: &offset, Timestamp: at, Incarnation: incarnation,
		Position: strconv.FormatInt(int64(partition), 10) + "/" + strconv.FormatInt(offset, 10),
	}
	if where != topic {
		o.Position = where + ":" + o.Position
	}
	return o
}

// newMessage converts any record into a Watermill message. A record without a Watermill UUID gets one that is the same
// on every delivery.
func newMessage(r *kgo.Record, origin *envelope.Origin, waiting bool) *message.Message {
	md, uuid := readHeaders(r.Headers, waiting)
	if uuid == "" {
		uuid = envelope.StableID(origin)
	}
	if r.Key != nil {
		md[envelope.KeyKafkaKey] = string(r.Key)
	}
	if r.Value == nil {
		md[headerTombstone] = "true"
	}
	m := message.NewMessage(uuid, r.Value)
	m.Metadata = md
	return m
}

// size is the most bytes that a record takes in a batch.
func size(r *kgo.Record) int {
	const number = 5 // bytes of a length
	n := 6*number + 6 + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += 2*number + len(h.Key) + len(h.Value)
	}
	return n
}

func tooLarge(r *kgo.Record, limit int) error {
	return fmt.Errorf("kafka: the record for topic %s has %d bytes with its headers, the limit is %d: raise "+
		"max-message-bytes here and message.max.bytes on the topic, or keep large payloads elsewhere and send a reference",
		r.Topic, size(r), limit)
}
