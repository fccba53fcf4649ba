package rabbitmq

import (
	"cmp"
	"fmt"
	"iter"
	"reflect"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// keyWatermillUUID is the header in which watermill-amqp's publisher sends the message's UUID.
const keyWatermillUUID = "_watermill_message_uuid"

// keyRest is how much of a delay, in milliseconds, is left when the message leaves its delay queue. It bounds the
// effect of a wrong clock on envelope.KeyNotBefore.
const keyRest = "x-delay-rest"

// unmarshal converts a delivery to a message. It never fails: a foreign producer's message is still a message, and a
// subscriber that refused it could only return it, to get it again at once.
func unmarshal(d *amqp.Delivery) *message.Message {
	metadata := make(message.Metadata, len(d.Headers)+8)
	headersToMetadata(d.Headers, metadata)
	set := func(key, value string) {
		if value != "" {
			metadata[key] = value
		}
	}
	// Expiration and user id are left out: they belong to the past publication, and a message that repeated them would
	// expire in the dead letter queue, or be refused by the broker.
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
	uuid := cmp.Or(d.MessageId, short(metadata[keyWatermillUUID]), short(metadata[envelope.KeyMessageID]))
	m := message.NewMessage(uuid, d.Body)
	m.Metadata = metadata
	return m
}

// marshal converts m to a publication; the caller keeps the payload bytes. Only headers known to be harmless are
// copied: a copied CC misroutes the message, a copied expiration deletes it from the dead letter queue, a copied user
// id is refused, and a copied x-death makes RabbitMQ before 4.0 drop the message as a cycle.
func marshal(m *message.Message, ints []string) amqp.Publishing {
	p := amqp.Publishing{Body: m.Payload, DeliveryMode: amqp.Persistent}
	for _, of := range textProperties(&p) {
		*of.value = m.Metadata[of.key]
	}
	p.MessageId = cmp.Or(m.UUID, p.MessageId, short(m.Metadata[envelope.KeyMessageID]))
	p.CorrelationId = cmp.Or(p.CorrelationId, short(m.Metadata[envelope.KeyCorrelationID]))
	p.ContentType = cmp.Or(p.ContentType, short(m.Metadata[envelope.KeyContentType]))
	if t, ok := parseTime(m.Metadata[envelope.KeyAMQPTimestamp]); ok {
		p.Timestamp = t
	}
	if n, err := strconv.ParseUint(m.Metadata[envelope.KeyAMQPPriority], 10, 8); err == nil {
		p.Priority = uint8(n)
	}
	p.Headers = metadataToHeaders(m.Metadata, ints, skipHeader)
	return p
}

// textProperty is a property of a message and the metadata that represents it.
type textProperty struct {
	key, name string
	value     *string
}

func textProperties(p *amqp.Publishing) [7]textProperty {
	return [...]textProperty{
		{envelope.KeyAMQPMessageID, "message id", &p.MessageId},
		{envelope.KeyAMQPCorrelationID, "correlation id", &p.CorrelationId},
		{envelope.KeyAMQPContentType, "content type", &p.ContentType},
		{envelope.KeyAMQPContentEncoding, "content encoding", &p.ContentEncoding},
		{envelope.KeyAMQPType, "type", &p.Type},
		{envelope.KeyAMQPAppID, "app id", &p.AppId},
		{envelope.KeyAMQPReplyTo, "reply-to", &p.ReplyTo},
	}
}

// skipHeader reports whether metadata is not a header on the wire, or must not be one.
func skipHeader(key string) bool {
	switch key {
	case "CC", "BCC", envelope.KeyDelay, envelope.KeyNotBefore, keyRest,
		// The origin is rewritten for a retry or a dead letter. A handler that forwards a message must not claim the
		// origin of an earlier one for its publication.
		envelope.KeyConsumer, envelope.KeyTopic, envelope.KeyRoutingKey, envelope.KeyExchange,
		// These are properties.
		envelope.KeyAMQPMessageID, envelope.KeyAMQPCorrelationID, envelope.KeyAMQPContentType,
		envelope.KeyAMQPContentEncoding, envelope.KeyAMQPType, envelope.KeyAMQPAppID, envelope.KeyAMQPReplyTo,
		envelope.KeyAMQPTimestamp, envelope.KeyAMQPPriority:
		return true
	}
	return envelope.IsBrokerMade(key)
}

// remaining returns how much of a delay is left for a message that comes from a wait queue; values written by a
// producer are ignored. The message carries its due time, and how much was left when it left its delay queue: the
// smaller one counts, so that a clock that is wrong by an hour does not add an hour.
func remaining(headers amqp.Table, now time.Time) time.Duration {
	due, ok := integer(headers[envelope.KeyNotBefore])
	if !ok || !waited(headers) {
		return 0
	}
	if due > now.Add(envelope.MaxDelay).UnixMilli() {
		due = now.Add(envelope.MaxDelay).UnixMilli()
	}
	wait := time.UnixMilli(due).Sub(now)
	if rest, ok := integer(headers[keyRest]); ok && rest >= 0 && rest < envelope.MaxDelay.Milliseconds() {
		wait = min(wait, time.Duration(rest)*time.Millisecond)
	}
	return wait
}

// deaths yields RabbitMQ's records of how the message left queues before.
func deaths(headers amqp.Table) iter.Seq[amqp.Table] {
	list, _ := headers["x-death"].([]any)
	return func(yield func(amqp.Table) bool) {
		for _, item := range list {
			if death, ok := item.(amqp.Table); ok && !yield(death) {
				return
			}
		}
	}
}

// waited reports whether RabbitMQ has recorded that the message's time in a queue has ended.
func waited(headers amqp.Table) bool {
	for death := range deaths(headers) {
		if death["reason"] == "expired" {
			return true
		}
	}
	return false
}

// countRejections adds the cycles that other consumers made by rejecting, which RabbitMQ counts in x-death, to the
// failed attempts. We publish no x-death, so those in a retry of ours came after it.
func countRejections(headers amqp.Table, queue string, metadata message.Metadata) {
	had, err := strconv.ParseUint(cmp.Or(metadata[envelope.KeyRetryCount], "0"), 10, 31)
	if err != nil {
		return
	}
	for death := range deaths(headers) {
		n, ok := integer(death["count"])
		if death["queue"] == queue && death["reason"] == "rejected" && ok && n > 0 {
			metadata[envelope.KeyRetryCount] = strconv.FormatUint(had+uint64(n), 10)
			return
		}
	}
}

func integer(value any) (int64, bool) {
	switch v := reflect.ValueOf(value); {
	case v.CanInt():
		return v.Int(), true
	case v.CanUint():
		return int64(v.Uint()), true //nolint:gosec // G115: AMQP's have 32 bits at most
	case v.Kind() == reflect.String:
		n, err := strconv.ParseInt(v.String(), 10, 64)
		return n, err == nil
	}
	return 0, false
}

// maxShortString is the longest text of AMQP's short string: properties, header names, exchange, routing key.
const maxShortString = 255

// short returns a header's value if a property can have it, and otherwise "": a foreign producer's header may be
// longer, and its message could not be published again.
func short(header string) string {
	if len(header) > maxShortString {
		return ""
	}
	return header
}

// frameOverhead is what a content header frame needs alongside the properties and headers, with room to spare.
const frameOverhead = 63

// checkSize refuses messages that the client cannot encode. It must run before the client tries: amqp091-go closes the
// whole connection if it fails to encode a header, as does RabbitMQ if the headers of one message exceed a frame, and
// either ends every other publication in flight.
func checkSize(o *outgoing, frameSize int) error {
	size, long := measure(o.msg.Headers)
	size += frameOverhead
	var fault error
	check := func(name, value string) {
		size += 1 + len(value)
		if len(value) > maxShortString && fault == nil {
			fault = fmt.Errorf("%w: the %s has %d bytes, AMQP allows %d", brokers.ErrTooLarge, name, len(value), maxShortString)
		}
	}
	check("exchange", o.exchange)
	check("routing key", o.key)
	for _, p := range textProperties(&o.msg) {
		check(p.name, *p.value)
	}
	if fault != nil {
		return fault
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
