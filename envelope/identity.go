package envelope

import (
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
)

// positionSpace is the UUIDv5 namespace of ids derived from a position or from an id that no header can carry.
var positionSpace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/redrive-go/redrive/position"))

// NewID returns a new message id, a UUIDv7, which sorts by time of creation. It is safe for concurrent use.
func NewID() string {
	id, err := uuid.NewV7()
	if err != nil {
		// crypto/rand does not fail on any supported platform since Go 1.24.
		id = uuid.New()
	}
	return id.String()
}

// StableID returns an id for a foreign message without one, a UUIDv5 of where it is stored (broker, topic, incarnation
// and position): the same on every delivery, in every process. It returns "" if the origin is nil or has no position.
func StableID(o *Origin) string {
	if o == nil || o.Position == "" {
		return ""
	}
	name := make([]byte, 0, len(o.Broker)+len(o.Topic)+len(o.Position)+2)
	name = append(name, o.Broker...)
	name = append(name, 0)
	name = append(name, o.Topic...)
	name = append(name, 0)
	name = append(name, o.Position...)
	if o.Incarnation != "" {
		name = append(name, 0)
		name = append(name, o.Incarnation...)
	}
	return uuid.NewSHA1(positionSpace, name).String()
}

// Identify returns the message's id: from its header, its structured body, its AMQP message-id property, its
// CloudEvents id or its Watermill UUID, otherwise from StableID of its origin, or "" if nothing identifies it. An id
// that no header can carry (longer than 255 bytes, not UTF-8, with control characters) is replaced by a UUIDv5 of it,
// the same each time.
func Identify(m *message.Message) string {
	c, _ := ReadControl(m)
	return c.MessageID
}

// headerID returns the id from the headers, the Watermill UUID or the origin, or "".
func headerID(m *message.Message) string {
	if id := m.Metadata[KeyMessageID]; id != "" {
		return carriable(id)
	}
	return foreignID(m)
}

func foreignID(m *message.Message) string {
	for _, key := range [...]string{KeyAMQPMessageID, "ce_id", "cloudEvents_id"} {
		if id := m.Metadata[key]; id != "" {
			return carriable(id)
		}
	}
	if m.UUID != "" {
		return carriable(m.UUID)
	}
	if o, ok := OriginFrom(m.Context()); ok {
		return StableID(o)
	}
	return ""
}

// carriable returns the id if a header can carry it, otherwise a UUIDv5 of it.
func carriable(id string) string {
	if len(id) <= maxName {
		i := 0
		for i < len(id) && id[i]-' ' <= '~'-' ' {
			i++
		}
		if i == len(id) || carriableText(id[i:]) {
			return id
		}
	}
	return uuid.NewSHA1(positionSpace, []byte(id)).String()
}

func carriableText(s string) bool {
	for _, r := range s {
		if unicode.IsControl(r) {
			return false
		}
	}
	return utf8.ValidString(s)
}
