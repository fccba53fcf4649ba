package tracing

import (
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/redrive-go/redrive/envelope"
)

// system is the messaging.system of a broker's URL scheme.
func system(scheme string) attribute.KeyValue {
	switch scheme {
	case "amqp", "amqps":
		return semconv.MessagingSystemRabbitMQ
	case "kafka":
		return semconv.MessagingSystemKafka
	case "":
		return semconv.MessagingSystemKey.String("unknown")
	default:
		return semconv.MessagingSystemKey.String(scheme)
	}
}

func (t *Tracer) messageAttributes(m *message.Message, scheme, topic string) []attribute.KeyValue {
	list := make([]attribute.KeyValue, 0, 20)
	list = append(append(list, t.cfg.Attributes...), system(scheme), semconv.MessagingDestinationName(topic))
	if id := envelope.CorrelationID(m); id != "" {
		list = append(list, semconv.MessagingMessageConversationID(text(id)))
	}
	return list
}

func originAttributes(o *envelope.Origin) []attribute.KeyValue {
	var list []attribute.KeyValue
	if o.Consumer != "" {
		if o.Broker == "amqp" || o.Broker == "amqps" {
			list = append(list, semconv.MessagingDestinationSubscriptionName(o.Consumer)) // the queue
		} else {
			list = append(list, semconv.MessagingConsumerGroupName(o.Consumer))
		}
	}
	if o.RoutingKey != "" {
		list = append(list, semconv.MessagingRabbitMQDestinationRoutingKey(text(o.RoutingKey)))
	}
	if o.Partition != nil {
		list = append(list, semconv.MessagingDestinationPartitionID(strconv.Itoa(int(*o.Partition))))
	}
	if o.Broker == "kafka" && o.Offset != nil {
		list = append(list, semconv.MessagingKafkaOffset(int(*o.Offset)))
	}
	return list
}
