package envelope

import (
	"context"
	"time"
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
	// Incarnation distinguishes positions of a Topic from those of another topic of the same name: Kafka topics are
	// deleted and recreated, and mirrored to other clusters, and then positions start over. It is empty if positions are
	// unique forever.
	Incarnation string
	// Redelivered is the broker's own flag. Information only.
	Redelivered bool
	// DeliveryCount is the broker's own count. Information only: the retry counter travels in the message.
	DeliveryCount int
}

type originKey struct{}

// WithOrigin returns a context that carries o. A nil origin counts as none.
func WithOrigin(ctx context.Context, o *Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// OriginFrom returns the origin that a driver attached to the context of a delivered message, or nil and false if there
// is none, as with a plain Watermill subscriber.
func OriginFrom(ctx context.Context) (*Origin, bool) {
	o, _ := ctx.Value(originKey{}).(*Origin)
	return o, o != nil
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
