package brokers

import "time"

// Capabilities specifies what an open broker can do. Check them at start with [Require].
type Capabilities struct {
	// Scheme of the URL that opened the broker, for display: mem, amqp, kafka, postgres.
	Scheme string
	// Durable brokers keep confirmed messages across restarts of their server and of this process.
	Durable bool
	// Ordered brokers deliver the messages of one topic (on Kafka: of one key) in the order published, as long as
	// concurrency is 1 and nothing fails. A retry always loses its place.
	Ordered bool
	// Groups means that several consumer groups can each receive every message of a topic.
	Groups bool
	// Patterns means that Subscribe accepts topic patterns such as invoice.* and user.#.
	Patterns bool
	// Transactions means that the driver can publish inside the caller's database transaction.
	Transactions bool
	// DeliveryCount means that Origin.DeliveryCount counts deliveries that ended in a crash of the consumer.
	DeliveryCount bool
	// MaxDelay is the longest delay; 0 means that the broker cannot delay at all.
	MaxDelay time.Duration
	// DelayTolerance is how late a delayed message may be on a broker that is not overloaded. It is never early.
	DelayTolerance time.Duration
	// MaxMessageBytes bounds payload and headers together; 0 means that only memory bounds them.
	MaxMessageBytes int64
	// MaxHeaderBytes bounds the keys and values of the headers together; 0 means that only MaxMessageBytes bounds them.
	MaxHeaderBytes int64
	// MaxConcurrency bounds the concurrent handlers of one subscription; 0 means no bound.
	MaxConcurrency int
}
