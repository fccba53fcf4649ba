package kafka

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// Header names of this driver. Those marked "metadata" reach handlers; the others are removed from a record before.
const (
	// headerUUID holds the Watermill UUID, under the name that watermill-kafka uses.
	headerUUID = "_watermill_message_uuid"
	// headerRaw (metadata) holds the headers that a map of strings cannot: repeated names, and null values. A JSON array
	// of [name, base64 value or null], in order.
	headerRaw = "x-kafka-headers"
	// headerTombstone (metadata) is "true" on a record whose value is null, not empty.
	headerTombstone = "x-kafka-tombstone"
	// headerPartition, headerOffset and headerTimestamp (Unix ms) are the position of a message on its topic.
	headerPartition = "x-kafka-partition"
	headerOffset    = "x-kafka-offset"
	headerTimestamp = "x-kafka-timestamp"
	// headerSource is the topic of that position if it is not the one subscribed to: a message that was delayed before its
	// first delivery was never stored there.
	headerSource = "x-kafka-topic"
	// headerIncarnation distinguishes that topic from others of the same name.
	headerIncarnation = "x-kafka-topic-id"
	// headerWait is the whole delay of a waiting record in milliseconds, counted from when the broker received it.
	headerWait = "x-kafka-wait"
	// headerRetry marks a record that waits for a retry, and not for its first delivery.
	headerRetry = "x-kafka-retry"
	// headerControl marks a record that is not a message: controlProbe and the like.
	headerControl = "x-kafka-control"
	// headerReference marks a dead letter without its body, and refers to the body.
	headerReference = "x-kafka-body"
)

// isWaitHeader reports whether a header belongs to the wait in a retry topic, and not to the message.
func isWaitHeader(name string) bool {
	switch name {
	case headerUUID, headerPartition, headerOffset, headerTimestamp, headerSource, headerIncarnation, headerWait,
		headerRetry,
		envelope.KeyNotBefore, envelope.KeyConsumer, envelope.KeyTopic:
		return true
	}
	return false
}

// readHeaders converts the headers of a record into metadata without loss: bytes stay bytes, and anything that a map
// cannot hold goes into headerRaw. In a retry topic, headers of the wait are left out.
func readHeaders(headers []kgo.RecordHeader, waiting bool) (md message.Metadata, uuid string) {
	md = make(message.Metadata, len(headers)+1)
	lossy := false
	for _, h := range headers {
		name := h.Key
		if name == headerUUID {
			uuid = string(h.Value)
			continue
		}
		if waiting && isWaitHeader(name) {
			continue
		}
		_, twice := md[name]
		lossy = lossy || twice || h.Value == nil
		md[name] = string(h.Value)
	}
	if lossy {
		if raw := packHeaders(headers, waiting); raw != "" {
			md[headerRaw] = raw
		}
	}
	return md, uuid
}

// rawHeader is a name and a value, which may be null. JSON has both in base64: they may hold bytes that it would
// replace.
type rawHeader [2][]byte

func packHeaders(headers []kgo.RecordHeader, waiting bool) string {
	count := map[string]int{}
	for _, h := range headers {
		count[h.Key]++
	}
	var raw []rawHeader
	for _, h := range headers {
		name := h.Key
		if name == headerUUID || name == headerRaw || waiting && isWaitHeader(name) || h.Value != nil && count[name] == 1 {
			continue
		}
		raw = append(raw, rawHeader{[]byte(name), h.Value})
	}
	if raw == nil {
		return ""
	}
	text, err := json.Marshal(raw)
	if err != nil {
		return ""
	}
	return string(text)
}

// writeHeaders is the inverse of readHeaders. A name in headerRaw whose value in md has changed is written only with
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
		switch name {
		case headerUUID, headerRaw, headerTombstone, headerControl, envelope.KeyKafkaKey:
			continue
		}
		if restored[name] || envelope.IsBrokerMade(name) {
			continue
		}
		headers = append(headers, header(name, value))
	}
	return headers
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
		restored[name] = there && now == value
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
