package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// ErrLost is what Settle answers for a delivery that is not this process's any more: the session has ended, the lease
// has run out, the partition was revoked. The message comes again, here or elsewhere.
var ErrLost = errors.New("the delivery is lost to this process")

// ErrRenew is what Next answers when nothing has failed, and the transport wants to open the stream anew. The engine
// does so at once, and logs nothing.
var ErrRenew = errors.New("the stream is to be opened anew")

// ErrBusy is what Publish answers for a message that it has not stored because something else holds its place for a
// while, such as a row that another session has locked. The engine tries again until its caller's time is over.
var ErrBusy = errors.New("another session holds what was to be changed")

// ErrTogether is what Publish answers for the messages of a call that are stored together or not at all, when one of
// them was refused. Where the engine has merged the messages of several callers, it tries each caller's again, apart.
var ErrTogether = errors.New("none of the messages was stored")

// ErrMissing marks an error of Publish that is brokers.ErrUnroutable because the place itself is missing, an exchange
// or a topic, and not only a reader of it: on a bus too it is an error. errors.Is finds both.
var ErrMissing = errors.New("the place to publish to is missing")

// MissingTarget explains why a redrive to origin was refused with err, which wraps brokers.ErrUnroutable.
func MissingTarget(origin *envelope.Origin, err error) error {
	named := "as this broker's naming scheme names it"
	if origin.RedriveTo != "" {
		named = fmt.Sprintf("%q, as the consumer's broker named it when the message died", origin.RedriveTo)
	}
	return fmt.Errorf("%w; where it goes (%s) must be there: a redrive makes no queue or topic; start the consumer, "+
		"or open this broker with the consumer's naming scheme", err, named)
}

// Headroom is how many bytes larger than a first publication a retry or a dead letter of it may be: what the pipeline
// records of a failure, and where the message came from.
const Headroom = 20 << 10

// The interfaces below are abilities that not every broker has. The engine finds them by type assertion.

// Sharer is a [Transport] whose queues come in parts, which the members of a group share out among them. The engine
// calls Join where it calls Receive of others.
type Sharer interface {
	// Join makes this process a member of q's group, and remains one until leave is called, whatever happens to its
	// connections. For each part that the member gets it calls begin, whose stream does not fail, and when it loses the
	// part, or leaves, end: nothing more is handed out then, and end returns when all is settled that will be, handlers
	// that take longer than grace excepted. leave returns when all parts have ended.
	Join(ctx context.Context, q Queue, begin Begin) (leave func(), err error)
}

// Begin hands out what a part of a queue has, Queue.Concurrency messages at once and window of them at most in hand,
// until end is called.
type Begin func(part Stream, window int) (end func(grace time.Duration))

// Mender is a [Transport] that can make what a publication needs. Mend is called when Publish has answered
// brokers.ErrUnroutable, for those messages that go to a place of ours: a consumer's queue, a waiting place, dead
// letters. Then they are published once more.
type Mender interface {
	Mend(ctx context.Context, out []Outgoing) error
}

// RetryChecker is a [Transport] that knows at start which messages it can never put in front of one consumer.
type RetryChecker interface {
	// CanReschedule returns why, and what to change, or nil.
	CanReschedule(delay time.Duration) error
}

// Contexts is a [Stream] that makes the context that a handler gets: it adds values, or ends it when the delivery is
// lost, with [ErrLost] or an error that wraps it as the cause. The context derives from parent. cancel ends it,
// and is called when the handler has answered; it may be nil for a context that only adds values.
type Contexts interface {
	Context(parent context.Context, d *Delivery) (ctx context.Context, cancel context.CancelFunc)
}

// Beginner is a [Stream] that can note durably that the handler of a suspect begins. From then on a delivery that ends
// without an answer counts for the messages that had begun, and for no other. Begin fails when the note is not durable:
// the delivery is then not handed out yet, and with [ErrLost] not at all.
type Beginner interface {
	Begin(ctx context.Context, d *Delivery) error
}

// Watcher is a [Stream] that tells of its end at once. The engine otherwise notices it at the next Next, which it does
// not call while the window is full.
type Watcher interface {
	// Gone is closed when the stream has ended: Next fails from then on.
	Gone() <-chan struct{}
}

// Widener is a [Stream] whose window can change. The engine widens it while messages that cannot be published again
// fill it, so that others are still consumed, and narrows it afterwards.
type Widener interface {
	Widen(ctx context.Context, window int) error
}

// Namer is a [Transport] that makes names in its own way, where the naming scheme of the Config alone does not make
// them.
type Namer interface {
	// NamesFor returns the names of the group on topic; group may be brokers.DefaultGroup.
	NamesFor(topic, group string) brokers.Names
	// NamesOf returns the names of the consumer as envelope.Origin names it.
	NamesOf(topic, consumer string) brokers.Names
}

// Addresser is a [Transport] on which the naming scheme decides where a retry without a delay goes. The others find it
// by topic and consumer alone.
type Addresser interface {
	// RedriveTo returns that place for the consumer of to, for envelope.Origin.
	RedriveTo(to *Destination) string
}

// ReaderCounter is a [Transport] that knows who reads a consumer's queue.
type ReaderCounter interface {
	// Readers returns how many streams of any process read the queue of the consumer; 0 also when there is none.
	Readers(ctx context.Context, to *Destination) (int, error)
}

// Expecter is a [Transport] that makes its waiting places by the waits that pipelines announce for their retries.
type Expecter interface {
	// Expect is called before consumers subscribe, with all that have been announced so far, shortest first.
	Expect(delays []time.Duration)
}

// Renewer is a [Stream] that can make the message of a delivery anew, as it was, for a delivery that is handed out
// again in place. For other streams the engine copies every message before it hands it out.
type Renewer interface {
	Renew(d *Delivery) *message.Message
}
