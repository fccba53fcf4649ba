package rabbitmq

import (
	"cmp"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/envelope"
)

// unmarshal converts a delivery to a message. It never fails: a foreign producer's message is still a message, and a
// subscriber that refused it could only return it, to get it again at once.
func unmarshal(d *amqp.Delivery) *message.Message {
	metadata := make(message.Metadata, len(d.Headers)+8)
	headersToMetadata(d.Headers, metadata)
	propertiesToMetadata(d, metadata)

	uuid := d.MessageId
	if uuid == "" {
		uuid = cmp.Or(metadata[keyWatermillUUID], metadata[envelope.KeyMessageID])
	}
	m := message.NewMessage(uuid, d.Body)
	m.Metadata = metadata
	return m
}

// marshal converts m to a publication; the caller keeps the payload bytes. Only headers known to be harmless are
// copied: a copied CC misroutes the message, a copied expiration deletes it from the dead letter queue, a copied user
// id is refused, and a copied x-death makes RabbitMQ before 4.0 drop the message as a cycle.
func marshal(m *message.Message, ints []string) amqp.Publishing {
	p := amqp.Publishing{Body: m.Payload}
	setProperties(&p, m)
	p.Headers = metadataToHeaders(m.Metadata, ints, skipHeader)
	return p
}

// skipHeader reports whether metadata is not a header on the wire, or must not be one.
func skipHeader(key string) bool {
	switch key {
	case "CC", "BCC", envelope.KeyDelay, envelope.KeyNotBefore, keyRest,
		// The origin is rewritten for a retry or a dead letter. A handler that forwards a message must not claim the
		// origin of an earlier one for its publication.
		envelope.KeyConsumer, envelope.KeyTopic, envelope.KeyRoutingKey, envelope.KeyExchange:
		return true
	}
	return envelope.IsBrokerMade(key) || isProperty(key)
}

// keyRest is how much of a delay, in milliseconds, is left when the message leaves its delay queue. It bounds the
// effect of a wrong clock on envelope.KeyNotBefore.
const keyRest = "x-delay-rest"
