package collector

import (
	"cmp"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// readSpringKafka reads the headers of Spring for Apache Kafka's DeadLetterPublishingRecoverer, and those that the
// Kafka binder of Spring Cloud Stream writes instead. Both put partition, offset and timestamp as bytes.
func readSpringKafka(m *message.Message, d *Death) bool {
	h := m.Metadata
	original, exception := "kafka_dlt-original-", "kafka_dlt-exception-"
	if h[original+"topic"] == "" {
		if original, exception = "x-original-", "x-exception-"; h[original+"topic"] == "" {
			return false
		}
	}
	d.Topic = h[original+"topic"]
	d.Consumer = h[original+"consumer-group"]
	d.Partition, d.Offset = partition(h[original+"partition"]), offset(h[original+"offset"])
	d.Published = millis(h[original+"timestamp"])
	d.Handler = d.Consumer
	d.readException(h, exception)
	if d.Class == "" && d.Err.Message == "" { // the key could not be deserialized
		d.readException(h, "kafka_dlt-key-exception-")
	}
	if attempts, ok := number(h["retry_topic-attempts"]); ok && attempts > 0 && attempts < 1<<31 {
		d.Attempts = int(attempts)
	}
	return true
}

// readException prefers the cause: the exception itself is always the listener container's wrapper.
func (d *Death) readException(h message.Metadata, prefix string) {
	d.Class = cmp.Or(h[prefix+"cause-fqcn"], h[prefix+"fqcn"])
	d.Err.Message = h[prefix+"message"]
	d.Err.Trace = h[prefix+"stacktrace"]
	if strings.Contains(d.Class, "DeserializationException") {
		d.Reason = envelope.ReasonMalformed
	}
}

// readSpringAMQP reads the headers of Spring AMQP's RepublishMessageRecoverer. They name no queue.
func readSpringAMQP(m *message.Message, d *Death) bool {
	h := m.Metadata
	key, republished := h["x-original-routingKey"]
	_, failed := h["x-exception-message"]
	_, traced := h["x-exception-stacktrace"]
	if !republished && !failed && !traced {
		return false
	}
	readRabbitMQ(m, d)
	d.Exchange, d.RoutingKey = h["x-original-exchange"], key
	if d.Consumer == "" && d.Exchange == "" { // the default exchange: the key is the queue
		d.Topic, d.Consumer = key, key
	}
	d.Reason = ""
	d.readException(h, "x-exception-")
	if d.Class == "" {
		d.Class = classOfTrace(d.Err.Trace)
	}
	return true
}

// classOfTrace finds the exception in the first line of a Java stack trace.
func classOfTrace(trace string) string {
	line, _, _ := strings.Cut(trace, "\n")
	class, _, _ := strings.Cut(line, ":")
	if class = strings.TrimSpace(class); class == "" || strings.ContainsAny(class, " \t") ||
		!strings.Contains(class, ".") {
		return ""
	}
	return class
}

func ownedBySpring(header string) bool {
	switch header {
	case "x-original-topic", "x-original-partition", "x-original-offset", "x-original-timestamp",
		"x-original-timestamp-type",
		"x-original-exchange", "x-original-routingKey", "x-exception-cause-fqcn", "x-exception-fqcn", "x-exception-message",
		"x-exception-stacktrace":
		return true
	default:
		// Not the others with kafka_: they are headers of applications, kafka_correlationId for one. retry_topic-*
		// would let a redriven message begin with the attempts used up.
		return strings.HasPrefix(header, "kafka_dlt-") || strings.HasPrefix(header, "retry_topic-")
	}
}

const connectPrefix = "__connect.errors."

func ownedByConnect(header string) bool { return strings.HasPrefix(header, connectPrefix) }

// readConnect reads the context headers of Kafka Connect's dead letter queue for sink connectors (KIP-298). All are
// text.
func readConnect(m *message.Message, d *Death) bool {
	const prefix = connectPrefix
	h := m.Metadata
	if h[prefix+"topic"] == "" && h[prefix+"connector.name"] == "" {
		return false
	}
	d.Topic = h[prefix+"topic"]
	d.Partition, d.Offset = partition(h[prefix+"partition"]), offset(h[prefix+"offset"])
	if name := h[prefix+"connector.name"]; name != "" {
		d.Consumer = "connect-" + name // the group of a sink connector, unless it overrides it
		d.Handler = name
	}
	d.Class = h[prefix+"exception.class.name"]
	d.Err = envelope.Error{
		Message: h[prefix+"exception.message"], Code: h[prefix+"stage"], Trace: h[prefix+"exception.stacktrace"],
	}
	switch h[prefix+"stage"] {
	case "KEY_CONVERTER", "VALUE_CONVERTER", "HEADER_CONVERTER":
		d.Reason = envelope.ReasonMalformed
	}
	return true
}
