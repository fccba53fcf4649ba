package collector

import (
	"encoding/binary"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// Format reads the dead letters of one system.
type Format struct {
	// Name is kept in envelope.Collected. Required.
	Name string
	// Read fills in what the message carries about its death, and returns false when it is not of this system. It must not
	// change the message, and must not fail: what cannot be read is omitted. Required.
	Read func(m *message.Message, d *Death) bool
	// Owns reports whether a header belongs to the dead letter and not to the message: a redrive omits it. May be nil.
	Owns func(header string) bool
}

// Death is what a dead letter carries about its death. Everything may be empty.
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
