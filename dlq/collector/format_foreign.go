package collector

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// xDeath is one event in x-death, which RabbitMQ orders latest first. The RabbitMQ driver passes it as JSON.
type xDeath struct {
	Queue       string    `json:"queue"`
	Reason      string    `json:"reason"` // rejected, expired, maxlen, delivery_limit
	Count       int64     `json:"count"`
	Exchange    string    `json:"exchange"`
	RoutingKeys []string  `json:"routing-keys"`
	Time        time.Time `json:"time"`
}

// readRabbitMQ reads the headers that RabbitMQ itself writes when it dead-letters: x-death or, without that,
// x-first-death-* and x-last-death-*.
func readRabbitMQ(m *message.Message, d *Death) bool {
	h := m.Metadata
	var deaths []xDeath
	if json.Unmarshal([]byte(h["x-death"]), &deaths) != nil || len(deaths) == 0 {
		queue := cmp.Or(h["x-last-death-queue"], h["x-first-death-queue"])
		if queue == "" {
			return false
		}
		deaths = []xDeath{{
			Queue:    queue,
			Reason:   cmp.Or(h["x-last-death-reason"], h["x-first-death-reason"]),
			Exchange: cmp.Or(h["x-last-death-exchange"], h["x-first-death-exchange"]),
			Count:    1,
		}}
	}
	death := failure(deaths)
	d.Topic, d.Consumer = death.Queue, death.Queue
	d.Exchange = death.Exchange
	if len(death.RoutingKeys) > 0 {
		d.RoutingKey = death.RoutingKeys[0]
	}
	if h[envelope.KeyConsumer] == death.Queue { // a redriven message: these headers have its first publish
		d.Exchange, d.RoutingKey = h[envelope.KeyExchange], h[envelope.KeyRoutingKey]
	}
	d.At = deaths[0].Time
	d.Handler = death.Queue
	d.Class = death.Reason
	switch death.Reason {
	case "rejected":
		d.Err.Message = "rejected by a consumer of queue " + death.Queue
		d.Attempts = clampCount(death.Count)
	case "delivery_limit":
		d.Err.Message = fmt.Sprintf("the delivery limit of queue %s was reached", death.Queue)
		d.Attempts = clampCount(death.Count)
	case "expired":
		d.Reason = envelope.ReasonExpired
		d.Err.Message = "the time to live ended in queue " + death.Queue
	case "maxlen":
		d.Err.Message = fmt.Sprintf("queue %s was full", death.Queue)
	default:
		d.Err.Message = "dead-lettered by RabbitMQ from queue " + death.Queue
	}
	return true
}

// rejected reports whether, according to RabbitMQ, a consumer rejected the message for good.
func rejected(m *message.Message) bool {
	var deaths []xDeath
	if json.Unmarshal([]byte(m.Metadata["x-death"]), &deaths) != nil || len(deaths) == 0 {
		return false
	}
	reason := failure(deaths).Reason
	return reason == "rejected" || reason == "delivery_limit"
}

// failure picks the event that names the consumer of the message: the latest rejection. A message that waited in a
// retry queue expired there, which is no failure; such an event only counts if there is no other.
func failure(deaths []xDeath) xDeath {
	for _, d := range deaths {
		if d.Reason == "rejected" || d.Reason == "delivery_limit" {
			return d
		}
	}
	return deaths[0]
}

func clampCount(n int64) int { return int(max(0, min(n, 1<<31-1))) }

// nServiceBusTime is the wire format of NServiceBus: not ISO 8601, with a colon before the microseconds, in UTC. Go's
// layouts have no colon there, so it is replaced with a dot first.
const nServiceBusTime = "2006-01-02 15:04:05.000000 Z"

// readNServiceBus reads the error forwarding headers that recoverability adds.
func readNServiceBus(m *message.Message, d *Death) bool {
	h := m.Metadata
	queue := h["NServiceBus.FailedQ"]
	if queue == "" {
		return false
	}
	queue, _, _ = strings.Cut(queue, "@") // Sales@MACHINE on transports whose addresses have a host
	d.Topic, d.Consumer = queue, queue
	d.Handler = h["NServiceBus.ProcessingEndpoint"]
	d.Class = h["NServiceBus.ExceptionInfo.ExceptionType"]
	d.Err.Message = h["NServiceBus.ExceptionInfo.Message"]
	d.Err.Trace = h["NServiceBus.ExceptionInfo.StackTrace"]
	d.At = parseNServiceBusTime(h["NServiceBus.TimeOfFailure"])
	return true
}

func parseNServiceBusTime(text string) time.Time {
	if i := strings.LastIndexByte(text, ':'); i >= 0 {
		text = text[:i] + "." + text[i+1:]
	}
	t, err := time.Parse(nServiceBusTime, text)
	if err != nil {
		return time.Time{}
	}
	return t
}

func ownedByNServiceBus(header string) bool {
	switch header {
	case "NServiceBus.FailedQ", "NServiceBus.TimeOfFailure", "NServiceBus.Retries", "NServiceBus.Retries.Timestamp",
		"NServiceBus.FLRetries", "NServiceBus.DelayedRetries", "NServiceBus.DelayedRetries.Timestamp":
		return true
	default:
		return strings.HasPrefix(header, "NServiceBus.ExceptionInfo.")
	}
}

// readMassTransit reads what the error transport of MassTransit adds; a skipped message, which no consumer wanted, only
// has MT-Reason.
func readMassTransit(m *message.Message, d *Death) bool {
	h := m.Metadata
	if h["MT-Reason"] == "" && h["MT-Fault-ExceptionType"] == "" && h["MT-Fault-Message"] == "" {
		return false
	}
	queue := queueOfAddress(h["MT-Fault-InputAddress"])
	d.Topic, d.Consumer = queue, queue
	d.Handler = h["MT-Fault-ConsumerType"]
	d.Class = h["MT-Fault-ExceptionType"]
	d.Err.Message = h["MT-Fault-Message"]
	d.Err.Trace = h["MT-Fault-StackTrace"]
	if at, err := time.Parse(time.RFC3339Nano, h["MT-Fault-Timestamp"]); err == nil {
		d.At = at
	}
	d.Attempts = 1 + count(h["MT-Fault-RetryCount"]) + count(h["MT-Fault-RedeliveryCount"])
	if h["MT-Reason"] == "dead-letter" {
		d.Reason, d.Attempts = envelope.ReasonPermanent, 0
		d.Err.Message = cmp.Or(d.Err.Message, "skipped: no consumer of the endpoint takes this message type")
	}
	return true
}

// queueOfAddress extracts the queue from rabbitmq://host/vhost/queue?durable=true or queue:name.
func queueOfAddress(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	if u.Opaque != "" {
		return u.Opaque
	}
	if name := path.Base(u.Path); name != "." && name != "/" {
		return name
	}
	return ""
}

func ownedByMassTransit(header string) bool {
	// MT-Fault-Address is where the sender wants faults to go, and part of the message.
	return header == "MT-Reason" || strings.HasPrefix(header, "MT-Fault-") && header != "MT-Fault-Address"
}

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
	if d.Exchange == "" && !rejected(m) { // the default exchange: the key is the queue
		d.Topic, d.Consumer, d.Handler = key, key, ""
	}
	d.Reason = ""
	d.readException(h, "x-exception-")
	d.Class = cmp.Or(d.Class, classOfTrace(d.Err.Trace))
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
