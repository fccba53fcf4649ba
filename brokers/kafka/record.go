package kafka

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
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
	if r.Key == nil {
		r.Key = origin.Key
	}
	r.Headers = append(withoutWait(r.Headers), originHeaders(origin)...)
	return r
}

// withoutWait removes headers of another wait, which a handler may have copied to the message.
func withoutWait(headers []kgo.RecordHeader) []kgo.RecordHeader {
	return slices.DeleteFunc(headers, func(h kgo.RecordHeader) bool { return h.Key != headerUUID && isWaitHeader(h.Key) })
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

// origin returns the origin of a record of the topic itself. incarnation is the topic's.
func (s *subscription) origin(r *kgo.Record, incarnation string) *envelope.Origin {
	partition, offset := r.Partition, r.Offset
	if incarnation != "" { // after an unclean election, offsets start over at those that are lost
		incarnation += "." + strconv.Itoa(int(r.LeaderEpoch))
	}
	return &envelope.Origin{
		Broker: Scheme, Topic: s.q.Topic, Consumer: s.q.Group,
		Key: r.Key, Partition: &partition, Offset: &offset, Timestamp: r.Timestamp, Incarnation: incarnation,
		Position: positionOf(partition, offset),
	}
}

func positionOf(partition int32, offset int64) string {
	return strconv.FormatInt(int64(partition), 10) + "/" + strconv.FormatInt(offset, 10)
}

// waitingOrigin returns the origin of a record that was read from a retry topic, where headers hold its position on the
// main topic. Missing values are taken from the record itself. incarnation is that of the retry topic.
func (s *subscription) waitingOrigin(r *kgo.Record, incarnation string) *envelope.Origin {
	o := s.origin(r, incarnation)
	partition, okP := number(r.Headers, headerPartition)
	offset, okO := number(r.Headers, headerOffset)
	where := r.Topic // a separate position: it must not identify another message of the topic
	if okP && okO && partition <= math.MaxInt32 {
		*o.Partition, *o.Offset = int32(partition), offset //nolint:gosec // G115: at most MaxInt32
		source, elsewhere := find(r.Headers, headerSource)
		if where = s.q.Topic; elsewhere {
			where = source
		}
	}
	if where != r.Topic {
		o.Incarnation, _ = find(r.Headers, headerIncarnation)
	}
	if ms, ok := number(r.Headers, headerTimestamp); ok {
		o.Timestamp = time.UnixMilli(ms)
	}
	if o.Position = positionOf(*o.Partition, *o.Offset); where != s.q.Topic {
		o.Position = where + ":" + o.Position
	}
	return o
}

// message converts any record into a Watermill message. A record without a Watermill UUID gets one that is the same on
// every delivery.
func (d *delivery) message() *message.Message {
	r := d.record
	md, uuid := d.headers()
	if uuid == "" {
		uuid = envelope.StableID(d.origin)
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
		"max-message-bytes here and max.message.bytes on the topic, or keep large payloads elsewhere and send a reference",
		r.Topic, size(r), limit)
}

// Header names of this driver, which the package comment explains. Only headerRaw and headerTombstone reach handlers.
const (
	headerUUID      = "_watermill_message_uuid"
	headerRaw       = "x-kafka-headers" // a JSON array of [name, base64 value or null], in order
	headerTombstone = "x-kafka-tombstone"
	headerPartition = "x-kafka-partition"
	headerOffset    = "x-kafka-offset"
	headerTimestamp = "x-kafka-timestamp"
	// headerSource is the topic of that position if it is not the one subscribed to: a message that was delayed before its
	// first delivery was never stored there.
	headerSource = "x-kafka-topic"
	// headerIncarnation distinguishes that topic from others of the same name.
	headerIncarnation = "x-kafka-topic-id"
	headerWait        = "x-kafka-wait" // the whole delay in ms, counted from when the broker received the record
	// headerRetry marks a record that waits for a retry, and not for its first delivery.
	headerRetry = "x-kafka-retry"
	// headerControl marks a record that is not a message: controlProbe and the like.
	headerControl = "x-kafka-control"
)

// isWaitHeader reports whether a header belongs to the wait in a retry topic, and not to the message.
func isWaitHeader(name string) bool {
	switch name {
	case headerUUID, headerPartition, headerOffset, headerTimestamp, headerSource, headerIncarnation, headerWait,
		headerRetry, envelope.KeyNotBefore, envelope.KeyConsumer, envelope.KeyTopic:
		return true
	}
	return false
}

// headers converts the headers of the record into metadata without loss: bytes stay bytes, and names that a map
// cannot hold go into headerRaw with all their values. In a retry topic, headers of the wait are left out.
func (d *delivery) headers() (md message.Metadata, uuid string) {
	headers := d.record.Headers
	md = make(message.Metadata, len(headers)+1)
	var lossy map[string]bool
	for _, h := range headers {
		name := h.Key
		if name == headerUUID {
			uuid = string(h.Value)
			continue
		}
		if d.waiting && isWaitHeader(name) {
			continue
		}
		if _, twice := md[name]; (twice || h.Value == nil) && name != headerRaw {
			if lossy == nil {
				lossy = map[string]bool{}
			}
			lossy[name] = true
		}
		md[name] = string(h.Value)
	}
	if lossy != nil {
		var raw []rawHeader
		for _, h := range headers {
			if lossy[h.Key] {
				raw = append(raw, rawHeader{[]byte(h.Key), h.Value})
			}
		}
		text, _ := json.Marshal(raw) // never fails
		md[headerRaw] = string(text)
	}
	return md, uuid
}

// rawHeader is a name and a value, which may be null. JSON has both in base64: they may hold bytes that it would
// replace.
type rawHeader [2][]byte

// writeHeaders is the inverse of headers. A name in headerRaw whose value in md has changed is written only with
// the new value. Broker-made headers are left out.
func writeHeaders(md message.Metadata, uuid string) []kgo.RecordHeader {
	headers := make([]kgo.RecordHeader, 0, len(md)+4)
	if uuid != "" {
		headers = append(headers, header(headerUUID, uuid))
	}
	var restored map[string]bool
	if text := md[headerRaw]; text != "" {
		headers, restored = unpackHeaders(headers, text, md)
	}
	for name, value := range md {
		if !restored[name] && isCarried(name) {
			headers = append(headers, header(name, value))
		}
	}
	return headers
}

// isCarried reports whether metadata of that name becomes a header.
func isCarried(name string) bool {
	switch name {
	case headerUUID, headerRaw, headerTombstone, headerControl, envelope.KeyKafkaKey:
		return false
	}
	return !envelope.IsBrokerMade(name)
}

func unpackHeaders(headers []kgo.RecordHeader, text string, md message.Metadata) ([]kgo.RecordHeader, map[string]bool) {
	var raw []rawHeader
	if json.Unmarshal([]byte(text), &raw) != nil {
		return headers, nil // not ours, or damaged: the map has the last value of each
	}
	last := map[string]string{}
	for _, r := range raw {
		last[string(r[0])] = string(r[1])
	}
	restored := map[string]bool{}
	for name, value := range last {
		now, there := md[name]
		restored[name] = there && now == value && isCarried(name)
	}
	for _, r := range raw {
		if name := string(r[0]); restored[name] {
			headers = append(headers, kgo.RecordHeader{Key: name, Value: r[1]})
		}
	}
	return headers, restored
}

func header(name, value string) kgo.RecordHeader {
	return kgo.RecordHeader{Key: name, Value: []byte(value)}
}

// find returns the last value of a header.
func find(headers []kgo.RecordHeader, name string) (string, bool) {
	for _, h := range slices.Backward(headers) {
		if h.Key == name {
			return string(h.Value), true
		}
	}
	return "", false
}

// number reads a decimal header. An unreadable value counts as absent, since any producer may write records.
func number(headers []kgo.RecordHeader, name string) (int64, bool) {
	text, ok := find(headers, name)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && n >= 0
}

func millis(d time.Duration) string {
	return strconv.FormatInt(driver.CeilMillis(d).Milliseconds(), 10)
}
