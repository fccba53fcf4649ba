package rabbitmq

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// keyWatermillUUID is the header in which watermill-amqp's publisher sends the message's UUID.
const keyWatermillUUID = "_watermill_message_uuid"

// propertiesToMetadata copies the AMQP properties to the envelope.KeyAMQP... names. Expiration and user id are left
// out: they belong to the past publication, and a message that repeated them would expire in the dead letter queue, or
// be refused by the broker.
func propertiesToMetadata(d *amqp.Delivery, metadata message.Metadata) {
	set := func(key, value string) {
		if value != "" {
			metadata[key] = value
		}
	}
	set(envelope.KeyAMQPMessageID, d.MessageId)
	set(envelope.KeyAMQPCorrelationID, d.CorrelationId)
	set(envelope.KeyAMQPContentType, d.ContentType)
	set(envelope.KeyAMQPContentEncoding, d.ContentEncoding)
	set(envelope.KeyAMQPType, d.Type)
	set(envelope.KeyAMQPAppID, d.AppId)
	set(envelope.KeyAMQPReplyTo, d.ReplyTo)
	if !d.Timestamp.IsZero() {
		metadata[envelope.KeyAMQPTimestamp] = formatTime(d.Timestamp)
	}
	if d.Priority != 0 {
		metadata[envelope.KeyAMQPPriority] = strconv.Itoa(int(d.Priority))
	}
}

// isProperty reports whether metadata represents a property and is therefore not a header.
func isProperty(key string) bool {
	switch key {
	case envelope.KeyAMQPMessageID, envelope.KeyAMQPCorrelationID, envelope.KeyAMQPContentType,
		envelope.KeyAMQPContentEncoding, envelope.KeyAMQPType, envelope.KeyAMQPAppID, envelope.KeyAMQPReplyTo,
		envelope.KeyAMQPTimestamp, envelope.KeyAMQPPriority:
		return true
	}
	return false
}

// setProperties sets the properties that may be repeated from metadata. Other fields of p are unchanged.
func setProperties(p *amqp.Publishing, m *message.Message) {
	get := func(key string) string { return m.Metadata[key] }
	p.DeliveryMode = amqp.Persistent
	p.MessageId = cmp.Or(m.UUID, get(envelope.KeyAMQPMessageID), get(envelope.KeyMessageID))
	p.CorrelationId = cmp.Or(get(envelope.KeyAMQPCorrelationID), get(envelope.KeyCorrelationID))
	p.ContentType = cmp.Or(get(envelope.KeyAMQPContentType), get(envelope.KeyContentType))
	p.ContentEncoding = get(envelope.KeyAMQPContentEncoding)
	p.Type = get(envelope.KeyAMQPType)
	p.AppId = get(envelope.KeyAMQPAppID)
	p.ReplyTo = get(envelope.KeyAMQPReplyTo)
	if t, ok := parseTime(get(envelope.KeyAMQPTimestamp)); ok {
		p.Timestamp = t
	}
	if n, err := strconv.ParseUint(get(envelope.KeyAMQPPriority), 10, 8); err == nil {
		p.Priority = uint8(n)
	}
}

// maxShortString is the longest text of AMQP's short string: properties, header names, exchange, routing key.
const maxShortString = 255

// frameOverhead is what a content header frame needs alongside the properties and headers, with room to spare.
const frameOverhead = 63

// checkSize refuses messages that the client cannot encode. It must run before the client tries: amqp091-go closes the
// whole connection if it fails to encode a header, as does RabbitMQ if the headers of one message exceed a frame, and
// either ends every other publication in flight.
func checkSize(o *outgoing, frameSize int) error {
	size, long := measure(o.msg.Headers)
	size += frameOverhead
	for _, f := range []struct{ name, value string }{
		{"exchange", o.exchange},
		{"routing key", o.key},
		{"message id", o.msg.MessageId},
		{"correlation id", o.msg.CorrelationId},
		{"content type", o.msg.ContentType},
		{"content encoding", o.msg.ContentEncoding},
		{"type", o.msg.Type},
		{"app id", o.msg.AppId},
		{"reply-to", o.msg.ReplyTo},
	} {
		if len(f.value) > maxShortString {
			return fmt.Errorf("%w: the %s has %d bytes, AMQP allows %d", brokers.ErrTooLarge, f.name, len(f.value),
				maxShortString)
		}
		size += 1 + len(f.value)
	}
	if long != "" {
		return fmt.Errorf("%w: a header name has %d bytes, AMQP allows %d: it begins %.40q", brokers.ErrTooLarge, len(long),
			maxShortString, long)
	}
	if size > frameSize {
		return fmt.Errorf("%w: the headers have %d bytes and must fit one frame of %d: move data from headers to the "+
			"payload, "+
			"or raise frame_max on the broker", brokers.ErrTooLarge, size, frameSize)
	}
	return nil
}

// measure returns the encoded size of a field in bytes, and a name in it that is too long for AMQP.
func measure(value any) (size int, long string) {
	add := func(key string, item any) {
		n, inner := measure(item)
		size += n
		if len(key) > maxShortString {
			inner = key
		}
		long = cmp.Or(long, inner)
	}
	switch v := value.(type) {
	case string:
		size = 5 + len(v)
	case []byte:
		size = 5 + len(v)
	case amqp.Table:
		size = 5
		for key, item := range v {
			size += 1 + len(key)
			add(key, item)
		}
	case []any:
		size = 5
		for _, item := range v {
			add("", item)
		}
	default:
		size = 9 // the longest of the others
	}
	return size, long
}
