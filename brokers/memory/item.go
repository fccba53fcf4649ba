package memory

import (
	"bytes"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// item is one stored message of one queue. A million of them may wait for a retry, so headers are a slice of pairs,
// which is a third of the size of a map, and shared with the items of other groups: nothing changes them.
type item struct {
	uuid     string
	payload  []byte
	headers  []header
	topic    string // as published
	position int64
	stored   time.Time

	due        time.Time // zero when it may be delivered at once
	nacks      int
	deliveries int
	again      bool // put back by Reschedule
}

// retry tells whether it waits for another delivery than its first.
func (it *item) retry() bool { return it.again || it.nacks > 0 }

type header struct{ key, value string }

// newItem copies m, so that the caller may go on using it. What a broker made of an earlier delivery is left out.
func newItem(m *message.Message, topic string, now time.Time) *item {
	it := &item{
		uuid:    m.UUID,
		payload: bytes.Clone(m.Payload),
		headers: make([]header, 0, len(m.Metadata)),
		topic:   topic,
		stored:  now,
	}
	for k, v := range m.Metadata {
		if !envelope.IsBrokerMade(k) {
			it.headers = append(it.headers, header{k, v})
		}
	}
	return it
}

// message renders a fresh message, which its receiver may change without changing the next delivery.
func (it *item) message() *message.Message {
	m := message.NewMessage(it.uuid, bytes.Clone(it.payload))
	for _, h := range it.headers {
		m.Metadata[h.key] = h.value
	}
	return m
}

// size is what the limit on messages counts: payload, header names and header values.
func size(m *message.Message) int64 {
	n := len(m.Payload)
	for k, v := range m.Metadata {
		n += len(k) + len(v)
	}
	return int64(n)
}
