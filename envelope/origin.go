package envelope

import (
	"context"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
)

// Origin is where a delivery came from. A driver's subscriber attaches it to the message's context with WithOrigin;
// retries, dead letters and redrives use it to return to the same consumer. Treat it as read-only.
type Origin struct {
	// Broker is the URL scheme of the broker: mem, amqp, kafka, postgres, ...
	Broker string
	// Topic is the topic as given to Subscribe.
	Topic string
	// Consumer identifies the consumer: the queue on RabbitMQ, the group on Kafka, in SQL and in memory.
	Consumer string
	// RedriveTo is where a redrive of the message is published, named by its consumer's broker: the group's retry topic on
	// Kafka, a queue on RabbitMQ. It is empty if Topic and Consumer are the whole address, or if it is unknown; then the
	// naming of the redriving broker decides.
	RedriveTo string
	// Exchange is the AMQP exchange that the message was published to.
	Exchange string
	// RoutingKey is the AMQP routing key that the message was published with.
	RoutingKey string
	// Key is the Kafka record's key; nil means none.
	Key []byte
	// Partition is the Kafka partition; nil means that the broker has none.
	Partition *int32
	// Offset is the Kafka or SQL offset; nil means that the broker has none.
	Offset *int64
	// Timestamp is when the broker received the message, zero if unknown.
	Timestamp time.Time
	// Position identifies the delivery within Broker and Topic and is stable over redeliveries ("3/1042"), or is empty.
	Position string
	// Incarnation distinguishes equal positions of a Topic: Kafka topics are deleted and recreated, mirrored to other
	// clusters, and may lose their last records, and then positions are used again. It is empty if positions are unique
	// forever.
	Incarnation string
	// Redelivered is the broker's own flag. Information only.
	Redelivered bool
	// DeliveryCount is the broker's own count. Information only: the retry counter travels in the message.
	DeliveryCount int
}

type originKey struct{}

// delivered is the context of a delivery, with its origin.
type delivered struct {
	context.Context
	origin *Origin
}

// Value implements context.Context.
func (d *delivered) Value(key any) any {
	if key == (originKey{}) {
		return d
	}
	return d.Context.Value(key)
}

// WithOrigin returns a context that carries o. A nil origin counts as none. ctx must end with the delivery, see
// [DeliveryContext].
func WithOrigin(ctx context.Context, o *Origin) context.Context { return &delivered{ctx, o} }

// OriginFrom returns the origin that a driver attached to the context of a delivered message, or nil and false if there
// is none, as with a plain Watermill subscriber.
func OriginFrom(ctx context.Context) (*Origin, bool) {
	d, _ := ctx.Value(originKey{}).(*delivered)
	if d == nil || d.origin == nil {
		return nil, false
	}
	return d.origin, true
}

// DeliveryContext returns the context that the driver attached the origin to, which ends no earlier than the delivery,
// unlike one that a middleware has derived. It reports false if there is none.
func DeliveryContext(ctx context.Context) (context.Context, bool) {
	d, ok := ctx.Value(originKey{}).(*delivered)
	return d, ok
}

type existingOnlyKey struct{}

// WithExistingOnly returns a context in which brokers publish only to existing destinations: they create no queue,
// topic or exchange and refuse the message instead. A redrive must not wait where no consumer will ever read.
func WithExistingOnly(ctx context.Context) context.Context {
	return context.WithValue(ctx, existingOnlyKey{}, true)
}

// ExistingOnly reports whether ctx comes from [WithExistingOnly].
func ExistingOnly(ctx context.Context) bool {
	only, _ := ctx.Value(existingOnlyKey{}).(bool)
	return only
}

// positionSpace is the UUIDv5 namespace of ids derived from a position or from an id that no header can carry.
var positionSpace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/redrive-go/redrive/position"))

// NewID returns a new message id, a UUIDv7, which sorts by time of creation. It is safe for concurrent use.
func NewID() string {
	id, err := uuid.NewV7()
	if err != nil {
		// crypto/rand does not fail on any supported platform since Go 1.24.
		id = uuid.New()
	}
	return id.String()
}

// StableID returns an id for a foreign message without one, a UUIDv5 of where it is stored (broker, topic, incarnation
// and position): the same on every delivery, in every process. It returns "" if the origin is nil or has no position.
func StableID(o *Origin) string {
	if o == nil || o.Position == "" {
		return ""
	}
	name := o.Broker + "\x00" + o.Topic + "\x00" + o.Position
	if o.Incarnation != "" {
		name += "\x00" + o.Incarnation
	}
	return uuid.NewSHA1(positionSpace, []byte(name)).String()
}

// Identify returns the message's id: from its header, its structured body, its AMQP message-id property, its
// CloudEvents id or its Watermill UUID, otherwise from StableID of its origin, or "" if nothing identifies it. An id
// that no header can carry (longer than 255 bytes, not UTF-8, with control characters) is replaced by a UUIDv5 of it,
// the same each time.
func Identify(m *message.Message) string {
	c, _ := ReadControl(m)
	return c.MessageID
}

// headerID returns the id from the headers, the Watermill UUID or the origin, or "".
func headerID(m *message.Message) string {
	if id := m.Metadata[KeyMessageID]; id != "" {
		return carriable(id)
	}
	return foreignID(m)
}

func foreignID(m *message.Message) string {
	for _, key := range [...]string{KeyAMQPMessageID, "ce_id", "cloudEvents_id", "cloudEvents:id"} {
		if id := m.Metadata[key]; id != "" {
			return carriable(id)
		}
	}
	if m.UUID != "" {
		return carriable(m.UUID)
	}
	if o, ok := OriginFrom(m.Context()); ok {
		return StableID(o)
	}
	return ""
}

// carriable returns the id if a header can carry it, otherwise a UUIDv5 of it.
func carriable(id string) string {
	if len(id) <= maxName {
		i := 0
		for i < len(id) && id[i]-' ' <= '~'-' ' {
			i++
		}
		if i == len(id) || carriableText(id[i:]) {
			return id
		}
	}
	return uuid.NewSHA1(positionSpace, []byte(id)).String()
}

func carriableText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// Producer is a handler's attempt that has produced messages. A pipeline puts it into their contexts, because
// Watermill's router publishes them after the pipeline is done with the attempt: a publisher that finds one reports
// publish errors to it, and the attempt is retried or dead-lettered. It must be comparable.
type Producer interface {
	// Publish calls publish with messages, all of this attempt. It returns nil when they are published, or when the
	// attempt has failed because of them and the consumed message is settled: then the router must ack it. Messages of a
	// failed attempt are dropped, because the next attempt will produce them again.
	Publish(publish func(...*message.Message) error, messages ...*message.Message) error
}

type producerKey struct{}

// WithProducer returns a context for messages produced by p.
func WithProducer(ctx context.Context, p Producer) context.Context {
	return context.WithValue(ctx, producerKey{}, p)
}

func producerOf(m *message.Message) Producer {
	if m == nil {
		return nil
	}
	p, _ := m.Context().Value(producerKey{}).(Producer)
	return p
}

// PublishProduced calls publish with messages, using the [Producer] of those that a handler produced. Every publisher
// that may be part of a router publishes through it: those of this module, and the one that
// middleware.Pipeline.PublisherDecorator returns. It returns the first error; later messages are not published.
func PublishProduced(publish func(...*message.Message) error, messages ...*message.Message) error {
	if len(messages) == 0 {
		return publish()
	}
	for len(messages) > 0 {
		p := producerOf(messages[0])
		n := 1
		for n < len(messages) && producerOf(messages[n]) == p {
			n++
		}
		if err := publishGroup(p, publish, messages[:n]); err != nil {
			return err
		}
		messages = messages[n:]
	}
	return nil
}

func publishGroup(p Producer, publish func(...*message.Message) error, messages []*message.Message) error {
	if p == nil {
		return publish(messages...)
	}
	for _, m := range messages { // receivers and further publishers are not part of the attempt
		m.SetContext(WithProducer(m.Context(), nil))
	}
	return p.Publish(publish, messages...)
}
