package envelope

import (
	"context"
	"time"
)

// Origin is where a delivery came from. A driver's subscriber attaches it to the message's context with WithOrigin; it
// is what a retry, a dead letter and a redrive need to find the way back to the same consumer. Treat it as read-only.
type Origin struct {
	// Broker is the URL scheme of the broker: mem, amqp, kafka, postgres, ...
	Broker string
	// Topic is the topic as it was given to Subscribe.
	Topic string
	// Consumer is who consumes: the queue on RabbitMQ, the group on Kafka, in SQL and in memory.
	Consumer string
	// RedriveTo is where a redrive of the message is published, named by the broker of its consumer: the group's retry
	// topic on Kafka, a queue on RabbitMQ. It is empty where Topic and Consumer are the whole address, or where it is
	// not known: then the naming of the broker that redrives decides.
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
	// Timestamp is when the broker took the message, zero if it does not say.
	Timestamp time.Time
	// Position identifies the delivery within Broker and Topic and is stable over redeliveries ("3/1042"), or is empty.
	Position string
	// Incarnation tells positions of a Topic from those of another one of its name: Kafka's topics are deleted and made
	// again, and mirrored to other clusters, and then positions begin anew. It is empty where positions are unique for
	// all time.
	Incarnation string
	// Redelivered is the broker's own flag. Information only.
	Redelivered bool
	// DeliveryCount is the broker's own count. Information only: the retry counter travels in the message.
	DeliveryCount int
}

type originKey struct{}

// WithOrigin returns a context that carries o. A nil origin is carried as none.
func WithOrigin(ctx context.Context, o *Origin) context.Context {
	return context.WithValue(ctx, originKey{}, o)
}

// OriginFrom returns the origin that a driver attached to the context of a delivered message. It reports false, and
// returns nil, without one, as with a plain Watermill subscriber.
func OriginFrom(ctx context.Context) (*Origin, bool) {
	o, _ := ctx.Value(originKey{}).(*Origin)
	return o, o != nil
}

type existingOnlyKey struct{}

// WithExistingOnly returns a context in which brokers publish only to what is there: they make no queue, topic or
// exchange for it, and refuse the message instead. A redrive must not wait where no consumer will ever read.
func WithExistingOnly(ctx context.Context) context.Context {
	return context.WithValue(ctx, existingOnlyKey{}, true)
}

// ExistingOnly reports whether ctx is of [WithExistingOnly].
func ExistingOnly(ctx context.Context) bool {
	only, _ := ctx.Value(existingOnlyKey{}).(bool)
	return only
}
