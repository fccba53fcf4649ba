package brokers

import "time"

// Capabilities specifies what an open broker can do. Check them at start with [Require].
type Capabilities struct {
	// Scheme of the URL that opened the broker, for messages to people: mem, amqp, kafka, postgres.
	Scheme string
	// Durable brokers keep confirmed messages when their server and this process restart.
	Durable bool
	// Ordered brokers deliver the messages of one topic (on Kafka: of one key) in the order published, as long as
	// concurrency is 1 and nothing fails. A retry always leaves its place.
	Ordered bool
	// Groups says that several consumer groups can each receive every message of a topic.
	Groups bool
	// Patterns says that Subscribe takes topic patterns such as invoice.* and user.#.
	Patterns bool
	// Transactions says that the driver can publish inside the caller's database transaction.
	Transactions bool
	// DeliveryCount says that Origin.DeliveryCount counts deliveries that ended in a crash of the consumer.
	DeliveryCount bool
	// MaxDelay is the longest delay; 0 means that the broker cannot delay at all.
	MaxDelay time.Duration
	// DelayTolerance is how late a delayed message may come when the broker is not overloaded. It is never early.
	DelayTolerance time.Duration
	// MaxMessageBytes bounds payload and headers together; 0 means that only memory bounds them.
	MaxMessageBytes int64
	// MaxHeaderBytes bounds the keys and values of the headers together; 0 means that only MaxMessageBytes does.
	MaxHeaderBytes int64
	// MaxConcurrency bounds the handlers at once of one subscription; 0 means no bound.
	MaxConcurrency int
}
