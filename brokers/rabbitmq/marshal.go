package rabbitmq

import (
	"cmp"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/envelope"
)

// unmarshal makes a message of a delivery. It never fails: whatever a foreign producer wrote is somebody's message, and
// a subscriber that refused it could only give it back, to get it again at once.
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

// marshal makes a publication of m, of which the caller keeps the right to the payload bytes. Only what is known to be
// harmless travels on: a copied CC misroutes the message, a copied expiration deletes it from the dead letter queue, a
// copied user id is refused, and a copied x-death makes RabbitMQ before 4.0 drop the message as a cycle.
func marshal(m *message.Message, ints []string) amqp.Publishing {
	p := amqp.Publishing{Body: m.Payload}
	setProperties(&p, m)
	p.Headers = metadataToHeaders(m.Metadata, ints, skipHeader)
	return p
}

// skipHeader reports metadata that is not a header on the wire, or must not be one.
func skipHeader(key string) bool {
	switch key {
	case "CC", "BCC", envelope.KeyDelay, envelope.KeyNotBefore, keyRest,
		// Where the message came from is written anew for a retry or a dead letter. A handler that passes on what it
		// received must not say of its publication what was true of an earlier one.
		envelope.KeyConsumer, envelope.KeyTopic, envelope.KeyRoutingKey, envelope.KeyExchange:
		return true
	}
	return envelope.IsBrokerMade(key) || isProperty(key)
}

// keyRest is how much of a delay, in milliseconds, is left when the delay queue that holds the message lets it go. It
// bounds what a wrong clock can make of envelope.KeyNotBefore.
const keyRest = "x-delay-rest"
