package envelope

import (
	"cmp"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// adopt fills in what a binary message lacks as an envelope, from what is known of the delivery.
func adopt(md message.Metadata, m *message.Message, now time.Time) {
	adoptID(md, m)
	if md[KeyVersion] != "" {
		return // anything missing was left out on purpose
	}
	origin, ok := OriginFrom(m.Context())
	if !ok {
		origin = &Origin{}
	}
	md[KeyVersion] = LayoutVersion
	if md[KeyTimestamp] == "" {
		created := now
		if !origin.Timestamp.IsZero() {
			created = origin.Timestamp
		}
		if t, ok := timeHeader(md, KeyAMQPTimestamp); ok {
			created = t
		}
		md[KeyTimestamp] = formatTimestamp(created)
	}
	if md[KeySource] == "" {
		setOrDelete(md, KeySource, headerText(md[KeyAMQPAppID], maxName))
	}
	if md[KeyQueue] == "" {
		setOrDelete(md, KeyQueue, headerText(cmp.Or(origin.Topic, message.SubscribeTopicFromCtx(m.Context())), maxName))
	}
}

// adoptID gives a message without an id the one that Identify finds, or a new one.
func adoptID(md message.Metadata, m *message.Message) {
	if md[KeyMessageID] != "" {
		return
	}
	id := foreignID(m)
	if id == "" {
		id = NewID()
	}
	md[KeyMessageID] = id
}
