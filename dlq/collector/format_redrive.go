package collector

import (
	"cmp"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// Headers in which our Kafka driver keeps a dead letter's position on its topic.
const (
	kafkaPartition = "x-kafka-partition"
	kafkaOffset    = "x-kafka-offset"
	kafkaTimestamp = "x-kafka-timestamp"
	kafkaSource    = "x-kafka-topic"
	kafkaTopicID   = "x-kafka-topic-id"
)

// readRedrive reads dead letters that our pipeline, in either mode, or one of our drivers published.
func readRedrive(m *message.Message, d *Death) bool {
	h := m.Metadata
	if h[envelope.KeyDeadLetterReason] == "" && h[envelope.KeyTopic] == "" {
		return false
	}
	if poisoned := h[envelope.KeyPoisonTopic]; poisoned != "" && h[envelope.KeyTopic] != "" &&
		poisoned != h[envelope.KeyTopic] {
		return false // ours have the same topic in both: it died again, in a consumer with Watermill's middleware
	}
	if rejected(m) {
		return false // our dead letters are published, never rejected
	}
	e, _ := envelope.FromMessage(m) // also returns what the headers have when the body is malformed
	if err := e.Err(); err != nil {
		d.Err = *err
	}
	d.Topic = cmp.Or(h[envelope.KeyTopic], h[envelope.KeyPoisonTopic], e.Queue())
	d.Consumer = h[envelope.KeyConsumer]
	d.Exchange, d.RoutingKey = h[envelope.KeyExchange], h[envelope.KeyRoutingKey]
	d.Partition, d.Offset = partition(h[kafkaPartition]), offset(h[kafkaOffset])
	d.Published, d.positionTopic, d.incarnation = millis(h[kafkaTimestamp]), h[kafkaSource], h[kafkaTopicID]
	d.Reason = envelope.Reason(h[envelope.KeyDeadLetterReason])
	d.Class, d.Rule = h[envelope.KeyErrorClass], h[envelope.KeyDeadLetterRule]
	d.Handler = h[envelope.KeyPoisonHandler]
	d.Attempts = e.RetryCount()
	d.FirstFailure, _ = envelope.FirstFailure(m)
	return true
}

// ownedByRedrive names the headers that envelope.PrepareRedrive leaves in: where the message was when it died.
func ownedByRedrive(header string) bool {
	switch header {
	case envelope.KeyTopic, envelope.KeyConsumer, kafkaPartition, kafkaOffset, kafkaTimestamp, kafkaSource, kafkaTopicID:
		return true
	default:
		return false
	}
}

// readWatermill reads the headers that Watermill's PoisonQueue middleware writes.
func readWatermill(m *message.Message, d *Death) bool {
	h := m.Metadata
	if _, poisoned := h[envelope.KeyPoisonReason]; !poisoned {
		return false
	}
	d.Topic = h[envelope.KeyPoisonTopic]
	d.Handler = h[envelope.KeyPoisonHandler]
	d.Err.Message = h[envelope.KeyPoisonReason]
	d.Reason = envelope.ReasonPermanent // the middleware does not retry
	d.Attempts = 1
	return true
}

func ownedByWatermill(header string) bool {
	switch header {
	case envelope.KeyPoisonReason, envelope.KeyPoisonTopic, envelope.KeyPoisonHandler, envelope.KeyPoisonSubscriber:
		return true
	default:
		return false
	}
}

// readEnvelope reads dead letters of other systems with our layout: the JSON body of the Laravel queues, with its error
// and retry_count, and the headers of the PHP service bus. Neither names the queue that the message died in.
func readEnvelope(m *message.Message, d *Death) bool {
	e, err := envelope.FromMessage(m)
	if err != nil {
		return false
	}
	h := m.Metadata
	if e.Mode() != envelope.Structured && h[envelope.KeyConsumerError] == "" && h[envelope.KeyRetryCount] == "" {
		return false
	}
	if fault := e.Err(); fault != nil {
		d.Err = *fault
	}
	d.Err.Message = cmp.Or(d.Err.Message, h[envelope.KeyConsumerError])
	d.Attempts = e.RetryCount()
	return true
}

func ownedByEnvelope(header string) bool {
	return header == envelope.KeyConsumerError || header == envelope.KeyRetryCount || envelope.IsBrokerMade(header)
}
