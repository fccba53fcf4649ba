package brokers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// Errors that callers check for, regardless of the driver. Drivers wrap them with details.
var (
	// ErrClosed means that the broker, or the publisher or subscriber taken from it, has been closed.
	ErrClosed = errors.New("broker is closed")
	// ErrUnroutable means that the broker has no place for the message: the queue or topic does not exist. Nothing was
	// stored.
	ErrUnroutable = errors.New("no queue takes this message")
	// ErrTooLarge means that the message exceeds what the broker stores. Retrying cannot help, but a dead letter store can
	// still take it.
	ErrTooLarge = envelope.ErrTooLarge
	// ErrUnsupported means that the broker does not support the request. See [Require].
	ErrUnsupported = errors.New("not supported by this broker")
)

// Broker is an open connection to a message broker. All methods are safe for concurrent use.
//
// The program that opened it closes it, after its router has stopped.
type Broker interface {
	// Publisher returns a publisher whose Publish returns nil only when the broker has stored every message durably and
	// routed it. On an error none, some or all of the messages may have been stored.
	//
	// A first-delivery delay requested with envelope.SetDelay, or with Watermill's components/delay, is honoured and never
	// ends early. The caller keeps the messages and may change their metadata, but never the bytes of a payload: after a
	// timeout the client may still be sending them.
	//
	// Closing it has no effect, because Watermill's router closes the publisher of each handler that stops, and handlers
	// may share one. Publishing fails with [ErrClosed] once the broker is closed.
	Publisher() message.Publisher

	// Subscriber returns a subscriber with its own group and concurrency, which default to the Config's. Subscribe returns
	// faults in the options, and waits up to 30 s for a server that restarts or has no leader; watermill+amqp does not.
	//
	// Every delivery carries an envelope.Origin in its context. Groups that subscribe to one topic each see every message;
	// subscribers of the same group share them. A nacked message is redelivered after a pause.
	//
	// Close drains: nothing more is delivered, running handlers finish with their contexts intact and may still publish,
	// and after Config.DrainTimeout remaining messages are returned. Cancelling the context of Subscribe does the same for
	// that one subscription.
	Subscriber(opts ...SubscriberOption) message.Subscriber

	// Reschedule delivers m to the consumer named by origin, and to no other, once delay has passed; 0 means now. It
	// returns nil when the broker has stored it durably, so that the caller may ack the delivery m came from. It may be
	// called long after that delivery, and from another process: redriving a dead letter is a Reschedule.
	//
	// The payload bytes and all headers survive, except those the broker made (envelope.IsBrokerMade). m belongs to
	// the broker after the call. A negative delay is 0. A delay that exceeds Capabilities.MaxDelay is [ErrUnsupported].
	Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error

	// DeadLetter stores d.Message in the dead letter queue that the naming scheme gives the consumer d.Origin. It
	// returns nil when the broker has stored it durably. d is not modified.
	DeadLetter(ctx context.Context, d *envelope.DeadLetter) error

	// Capabilities reports what this broker can do, with the configuration it was opened with.
	Capabilities() Capabilities

	// Ping checks that the broker answers. It fails when ctx ends, or with the fault that keeps the broker from working.
	Ping(ctx context.Context) error

	// Close drains every subscriber, lets publishes in flight finish, and releases the connection. It waits a few seconds
	// for a broker that does not answer. No goroutine is left. Closing again does nothing and returns nil.
	Close() error
}

// ReaderCounter is implemented by brokers that know whether a redrive would be read. Find out with a type assertion.
type ReaderCounter interface {
	// Readers returns how many consumers currently read the place to which a redrive to origin is published; 0 also if
	// there is no such place. The error is errors.ErrUnsupported if the broker does not know.
	Readers(ctx context.Context, origin envelope.Origin) (int, error)
}

// DepthReporter is implemented by brokers that can count their waiting messages, cheaply enough to do so every few
// seconds. Find out with a type assertion:
//
//	if counts, ok := broker.(brokers.DepthReporter); ok {
//
// The brokers of memory, RabbitMQ, Kafka, NATS and the SQL queue implement it. Package brokermetrics exports the
// numbers to Prometheus.
type DepthReporter interface {
	// Depths counts the messages that are stored and not delivered. Each broker documents which kinds it counts. Messages
	// move while they are counted, so the numbers need not be from one moment. A missing entry, like an entry of 0
	// messages, means that nothing waits. It fails when ctx ends, and after Close.
	Depths(ctx context.Context) ([]Depth, error)
}

// Depth counts waiting messages of one kind.
type Depth struct {
	// Topic from which they will be delivered; for dead letters, the one from which they were delivered.
	Topic string
	// Group that they wait for; "" if they wait for every group that reads the topic.
	Group string
	Kind  DepthKind
	// Messages is how many wait.
	Messages int64
}

// DepthKind is what messages wait for.
type DepthKind string

// The kinds of waiting.
const (
	// DepthDelayed messages wait for their first delivery.
	DepthDelayed DepthKind = "delayed"
	// DepthRetry messages have been delivered and wait for the next attempt.
	DepthRetry DepthKind = "retry"
	// DepthParked messages have no due time: they wait behind an earlier message of their key, on brokers that keep keys
	// in order across retries.
	DepthParked DepthKind = "parked"
	// DepthReady messages are due, and wait for a consumer with free capacity.
	DepthReady DepthKind = "ready"
	// DepthDeadLetter messages are stored in the dead letter queue of a consumer until they are collected.
	DepthDeadLetter DepthKind = "dead_letter"
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
	// DelayTolerance is how late a delayed message may be on a broker that is not overloaded.
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

// Driver opens brokers of one kind. Its package registers it under its URL schemes with [Register].
type Driver interface {
	// Open connects to the broker. cfg is resolved: URL holds the backend's own URI without our parameters, every value is
	// checked against Params, and every default is filled in. An error must not contain a password: drivers pass on errors
	// of url parsing without their text.
	Open(ctx context.Context, cfg Config) (Broker, error)

	// Params declares the parameters that the driver adds to the common ones. It returns the same slice content at every
	// call.
	Params() []Param
}

// ValueType is the type of a parameter's value.
type ValueType int

// The kinds of values. Each is parsed strictly: no surrounding space, no unit guessed, nothing out of range.
const (
	String       ValueType = iota // any text
	Int                           // decimal integer, not negative
	Bool                          // true or false
	Duration                      // Go duration such as 250ms or 1h30m, or days as 7d, not negative
	Size                          // bytes: a decimal integer, or one with the suffix KiB, MiB or GiB
	DurationList                  // durations separated by commas, such as 10s,20s,40s
)

// Param declares one parameter of a driver. It is written x-<Name> in the URL, or <Name> if that cannot be mistaken for
// one of the backend's own, and <Name> under params in a [Config].
type Param struct {
	// Name without the x-. Required.
	Name string
	// Type of the value. Defaults to String.
	Type ValueType
	// Default value in the syntax of Kind. Empty lets the driver detect that the parameter was not given.
	Default string
	// Doc is one sentence for people; it appears in listings.
	Doc string
	// OneOf lists the values allowed. Empty means all that Kind allows.
	OneOf []string
	// Min and Max bound an Int, a Duration (in nanoseconds) or a Size (in bytes). Max 0 means no bound.
	Min, Max int64
	// Secret keeps the value out of errors and logs. The name must also show that it is secret, by containing password,
	// secret, token or credential, for code that sees only the URL.
	Secret bool
	// Native marks a parameter of the backend's own URI: it stays in the URL, is written without x-, and is not parsed
	// here. The Name "*" stands for every parameter; then ours need their x-, so that neither shadows the other.
	//
	// Without Native, the Name "*" stands for the parameters of other drivers: those of a [Config] are left out instead of
	// refused. This is for a driver that replaces others in tests.
	Native bool
}
