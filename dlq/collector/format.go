package collector

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// Format reads the dead letters of one system.
type Format struct {
	// Name is kept in envelope.Collected. Required.
	Name string
	// Read fills in the death as far as the message shows it, and returns false if the message is not of this system. It
	// must not change the message, and must not fail: it leaves out values that it cannot read. Required.
	Read func(m *message.Message, d *Death) bool
	// Owns reports whether a header belongs to the dead letter and not to the message: a redrive omits it. May be nil.
	Owns func(header string) bool
}

// Death describes how a message died, as far as its dead letter shows it. Every field may be empty.
type Death struct {
	// Topic, Consumer, Exchange, RoutingKey, Partition and Offset are where the message was, as in envelope.Origin.
	Topic, Consumer, Exchange, RoutingKey string
	Partition                             *int32
	Offset                                *int64
	// Published is when the broker accepted the message there.
	Published time.Time
	// Reason explains why it is dead. Defaults to exhausted: its consumer gave up.
	Reason envelope.Reason
	// Err and Class are the error, Rule is what classified it as final, and Handler is what failed.
	Err                  envelope.Error
	Class, Rule, Handler string
	// Attempts is how often the handler ran.
	Attempts int
	// FirstFailure and At are when it first failed, and when it died.
	FirstFailure, At time.Time

	// positionTopic is the topic of Partition and Offset where that is not Topic, incarnation the id that it had then.
	positionTopic, incarnation string
}

// Formats lists the built-in formats in the order in which they are tried. A message that matches none is plain.
//
// Those of other systems come before ours: what a consumer or a broker wrote when the message died is newer than what
// its producer wrote, and a producer may use headers like ours.
func Formats() []Format {
	return []Format{
		{Name: "nservicebus", Read: readNServiceBus, Owns: ownedByNServiceBus},
		{Name: "masstransit", Read: readMassTransit, Owns: ownedByMassTransit},
		{Name: "connect", Read: readConnect, Owns: ownedByConnect},
		{Name: "spring-kafka", Read: readSpringKafka, Owns: ownedBySpring},
		{Name: "spring-amqp", Read: readSpringAMQP, Owns: ownedBySpring},
		{Name: "redrive", Read: readRedrive, Owns: ownedByRedrive},
		{Name: "watermill", Read: readWatermill, Owns: ownedByWatermill},
		{Name: "envelope", Read: readEnvelope, Owns: ownedByEnvelope},
		{Name: "rabbitmq", Read: readRabbitMQ, Owns: envelope.IsBrokerMade},
	}
}

const plain = "plain"

// number reads a number that a system wrote as decimal text, or as Java's ByteBuffer writes an int or a long. Text is
// tried first: the bytes of a number that is also text would be a partition or offset far beyond any real one.
func number(text string) (int64, bool) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && (text[0] == '-' || text[0] >= '0' && text[0] <= '9') {
		return n, true
	}
	switch len(text) {
	case 4:
		return int64(int32(binary.BigEndian.Uint32([]byte(text)))), true //nolint:gosec // an int was written
	case 8:
		return int64(binary.BigEndian.Uint64([]byte(text))), true //nolint:gosec // a long was written
	default:
		return 0, false
	}
}

// partition reads a partition; nil if absent. No cluster has a million, but four letters read as a number do.
func partition(text string) *int32 {
	n, ok := number(text)
	if !ok || n < 0 || n > 1_000_000 {
		return nil
	}
	p := int32(n)
	return &p
}

// offset reads an offset; nil if absent.
func offset(text string) *int64 {
	n, ok := number(text)
	if !ok || n < 0 {
		return nil
	}
	return &n
}

// millis reads a time in Unix milliseconds; zero if absent.
func millis(text string) time.Time {
	n, ok := number(text)
	if !ok || n <= 0 || n > 253402300799999 { // the year 9999
		return time.Time{}
	}
	return time.UnixMilli(n)
}

// count reads a small natural number; 0 if absent.
func count(text string) int {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0
	}
	return int(n)
}

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
	return slices.Contains([]string{
		envelope.KeyTopic, envelope.KeyConsumer, kafkaPartition, kafkaOffset, kafkaTimestamp, kafkaSource, kafkaTopicID,
	}, header)
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
	return slices.Contains([]string{
		envelope.KeyPoisonReason, envelope.KeyPoisonTopic, envelope.KeyPoisonHandler, envelope.KeyPoisonSubscriber,
	}, header)
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
