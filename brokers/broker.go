package brokers

import (
	"context"
	"errors"
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

	// Subscriber returns a subscriber with its own group and concurrency, which default to the Config's. Faults in the
	// options are returned by Subscribe.
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

	// Close drains every subscriber, lets publishes that are in flight finish, and releases the connection. No
	// goroutine is left. Closing again does nothing and returns nil.
	Close() error
}
