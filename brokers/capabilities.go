package brokers

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

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

// Needs is what a program requires of its broker. The zero value requires nothing.
type Needs struct {
	// Durable requires that messages survive a restart.
	Durable bool
	// Ordered requires that messages stay in order.
	Ordered bool
	// Groups requires that several groups each see every message.
	Groups bool
	// Patterns requires topic patterns.
	Patterns bool
	// Transactions requires publishing inside a database transaction.
	Transactions bool
	// CrashLimit requires that deliveries which crash their consumer are counted.
	CrashLimit bool
	// Delays are the delays that will be used: the steps of the backoff, first-delivery delays.
	Delays []time.Duration
	// MessageBytes is the size of the largest message, headers included.
	MessageBytes int64
	// Concurrency is the number of concurrent handlers.
	Concurrency int
}

// Require checks at start that b supports everything in n, instead of failing at the first message that needs it. The
// error wraps [ErrUnsupported], lists everything that is missing, and suggests a change for each.
func Require(b Broker, n Needs) error {
	c := b.Capabilities()
	var faults []error
	lack := func(needed, able bool, sentence string) {
		if needed && !able {
			faults = append(faults, errors.New(sentence))
		}
	}
	lack(n.Durable, c.Durable, "it forgets its messages when it stops: open a broker that keeps them, "+
		"such as amqp://, kafka:// or postgres://, or do not ask for Durable")
	lack(n.Ordered, c.Ordered, "it does not keep messages in order as configured: use concurrency 1, "+
		"or a broker that keeps order per key such as kafka://, or do not ask for Ordered")
	lack(n.Groups, c.Groups, "it has no consumer groups: give each service its own topic, or do not ask for Groups")
	lack(n.Patterns, c.Patterns, "it has no topic patterns as configured: open it with naming=service-bus, "+
		"or subscribe to each event by its name")
	lack(n.Transactions, c.Transactions, "it cannot publish inside a database transaction: open the queue of your "+
		"database "+
		"(postgres://, mysql://, sqlite://), or do not ask for Transactions")
	lack(n.CrashLimit, c.DeliveryCount, "it does not count deliveries, so a message that crashes its consumer "+
		"is redelivered forever: use quorum queues on RabbitMQ or a SQL queue, or do not ask for CrashLimit")

	if len(n.Delays) > 0 {
		longest := slices.Max(n.Delays)
		switch {
		case c.MaxDelay == 0 && longest > 0:
			faults = append(faults, errors.New("it cannot delay messages: retry at once (backoff none), or choose another "+
				"broker"))
		case longest > c.MaxDelay:
			faults = append(faults, fmt.Errorf("its longest delay is %s, not %s: cap the backoff at %s", c.MaxDelay, longest,
				c.MaxDelay))
		}
	}
	if c.MaxMessageBytes > 0 && n.MessageBytes > c.MaxMessageBytes {
		faults = append(faults, fmt.Errorf("its largest message has %d bytes, not %d: raise the limit on the broker, "+
			"or keep large payloads elsewhere and send a reference", c.MaxMessageBytes, n.MessageBytes))
	}
	if c.MaxConcurrency > 0 && n.Concurrency > c.MaxConcurrency {
		faults = append(faults, fmt.Errorf("it runs at most %d handlers at once, not %d: lower the concurrency",
			c.MaxConcurrency, n.Concurrency))
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("brokers: %s: %w: %w", c.Scheme, ErrUnsupported, errors.Join(faults...))
}
