package engine

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/envelope"
)

// maxKept is the longest value of a header of ours that enclose leaves in its place.
const maxKept = 255

// enclose moves the headers of a retry or a dead letter behind its payload, where the broker has room for them; those
// that name the failure and the way back stay. Other producers' headers may fill what a broker has room for, with none
// left for ours: without this, such a message could never leave its consumer. disclose restores it.
//
// With a naming scheme of another system, its own consumers may read the queue and would not understand a retry of this
// form: there the message is dead-lettered instead. enclose reports whether there is anything to send.
func (b *Broker) enclose(o *driver.Outgoing) bool {
	to := o.To.Kind
	if b.caps.MaxHeaderBytes == 0 || to == driver.ToTopic ||
		to == driver.ToConsumer && b.cfg.Naming.Preset != "default" {
		return false
	}
	kept := make(message.Metadata, len(o.Message.Metadata))
	var moved [][2][]byte
	for key, value := range o.Message.Metadata {
		switch {
		case envelope.IsBrokerMade(key): // never published
		case moves(key, len(value)):
			moved = append(moved, [2][]byte{[]byte(key), []byte(value)})
		default:
			kept[key] = value
		}
	}
	if len(moved) == 0 || o.Message.Metadata[envelope.KeyEnclosed] != "" {
		return false
	}
	headers, err := json.Marshal(moved)
	if err != nil {
		return false
	}
	length := len(o.Message.Payload)
	kept[envelope.KeyEnclosed] = strconv.Itoa(length)
	o.Message = o.Message.Copy()
	o.Message.Payload = append(o.Message.Payload[:length:length], headers...)
	o.Message.Metadata = kept
	return true
}

// moves reports whether a header is one that enclose moves. Those that decide what happens to a message stay where they
// are: from behind a payload, a producer could write them over the engine's own, again with every delivery. maxKept is
// also the longest name that AMQP allows.
func moves(key string, length int) bool {
	switch key {
	case envelope.KeyHeaderTypes:
		return true
	case envelope.KeyRetryCount, envelope.KeyDelay, envelope.KeyWatermillDelayedFor, envelope.KeyWatermillDelayedUntil:
		return false
	}
	return len(key) <= maxKept && !envelope.IsBrokerMade(key) && !slices.Contains(ownState[:], key) &&
		(!envelope.IsOurs(key) || length > maxKept)
}

// disclose restores a message from enclose. A message that only claims to be one keeps its payload.
func disclose(m *message.Message) {
	value, enclosed := m.Metadata[envelope.KeyEnclosed]
	if !enclosed {
		return
	}
	delete(m.Metadata, envelope.KeyEnclosed)
	length, err := strconv.ParseUint(value, 10, 31)
	if err != nil || length > uint64(len(m.Payload)) {
		return
	}
	var headers [][2][]byte
	if json.Unmarshal(m.Payload[length:], &headers) != nil {
		return
	}
	for _, h := range headers {
		if key := string(h[0]); moves(key, len(h[1])) {
			m.Metadata[key] = string(h[1])
		}
	}
	m.Payload = m.Payload[:length:length]
}
