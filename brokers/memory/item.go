package memory

import (
	"bytes"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers/driver"
)

// item is one stored message of one queue. A million of them may wait for a retry, so headers are a slice of pairs,
// which takes a third of the size of a map, and shared with the items of other groups, because nothing changes them.
type item struct {
	uuid     string
	payload  []byte
	headers  []header
	topic    string // as published
	position int64
	stored   time.Time

	due        time.Time // zero if it may be delivered at once
	deliveries int       // number of nacked deliveries
	again      bool      // put back by Reschedule
}

// retry reports whether it waits for a delivery other than its first.
func (it *item) retry() bool { return it.again || it.deliveries > 0 }

type header struct{ key, value string }

// newItem copies the message of o.
func newItem(o *driver.Outgoing, topic string, now time.Time) *item {
	it := &item{
		uuid:    o.Message.UUID,
		payload: bytes.Clone(o.Message.Payload),
		headers: make([]header, 0, len(o.Message.Metadata)+len(o.Extra)),
		topic:   topic,
		stored:  now,
		due:     o.Due,
	}
	for k, v := range o.Headers() {
		it.headers = append(it.headers, header{k, v})
	}
	return it
}

// message renders a fresh message, so that its receiver cannot affect the next delivery.
func (it *item) message() *message.Message {
	m := message.NewMessage(it.uuid, bytes.Clone(it.payload))
	for _, h := range it.headers {
		m.Metadata[h.key] = h.value
	}
	return m
}
