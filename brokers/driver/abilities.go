package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// ErrLost is returned by Settle for a delivery that no longer belongs to this process: the session has ended, the lease
// has expired, the partition was revoked. The message is redelivered, here or elsewhere.
var ErrLost = errors.New("the delivery is lost to this process")

// ErrRenew is returned by Next when nothing has failed and the transport wants to reopen the stream. The engine does so
// at once, and logs nothing.
var ErrRenew = errors.New("the stream must be reopened")

// ErrBusy is returned by Publish for a message that it has not stored because something else holds its place for a
// while, such as a row that another session has locked. The engine retries until its caller's deadline.
var ErrBusy = errors.New("another session holds the message")

// ErrTogether is returned by Publish for messages that are stored together or not at all, when one of them was
// rejected. If the engine has merged the messages of several callers, it retries each caller's separately, and those of
// a batch of redrives each alone.
var ErrTogether = errors.New("none of the messages was stored")

// ErrDiffers is the cause of a Declare that was refused only because the queue exists with other settings. Its messages
// can be read all the same, and nothing that is published for it is lost.
var ErrDiffers = errors.New("it exists with other settings")

// ErrTemporary marks an error of Declare, Receive or Join that passes on its own, as when a server restarts or elects a
// leader. Subscribe waits up to 30 s for it to pass, and returns any other error after a second attempt. It marks those
// of opening a broker, too, where no net.Error or io.EOF shows that the server is down or not ready.
var ErrTemporary = errors.New("the broker is not ready")

// ErrMissing marks an error of Publish that is brokers.ErrUnroutable because the destination itself is missing, an
// exchange or a topic, and not only its reader: this is an error even on a bus. errors.Is finds both.
var ErrMissing = errors.New("the place to publish to is missing")

// MissingTarget explains why a redrive to origin was refused with err, which wraps brokers.ErrUnroutable.
func MissingTarget(origin *envelope.Origin, err error) error {
	named := "as this broker's naming scheme names it"
	if origin.RedriveTo != "" {
		named = fmt.Sprintf("%q, as the consumer's broker named it when the message died", origin.RedriveTo)
	}
	return fmt.Errorf("%w; its destination (%s) must exist: a redrive creates no queue or topic; start the consumer, "+
		"or open this broker with the consumer's naming scheme", err, named)
}

// Headroom is by how many bytes a retry or a dead letter may exceed the first publication: the pipeline's record of the
// failure, and the message's origin.
const Headroom = 20 << 10

// The interfaces below are optional abilities of brokers. The engine finds them by type assertion.

// Sharer is a [Transport] whose queues have parts, which are distributed among the members of a group. The engine calls
// Join instead of Receive.
type Sharer interface {
	// Join makes this process a member of q's group until leave is called, whatever happens to its connections. For each
	// part that the member gets it calls begin, whose stream does not fail. When it loses the part, or leaves, it calls
	// end: nothing more is dispatched then, and end returns when everything that can be is settled, except for handlers
	// that take longer than grace. leave returns when all parts have ended.
	Join(ctx context.Context, q Queue, begin Begin) (leave func(), err error)
}

// Begin dispatches the messages of a part of a queue, Queue.Concurrency at once and at most window of them in flight,
// until end is called.
type Begin func(part Stream, window int) (end func(grace time.Duration))

// RetryChecker is a [Transport] that knows at start which messages it can never deliver to one consumer.
type RetryChecker interface {
	// CanReschedule returns why, and what to change, or nil.
	CanReschedule(delay time.Duration) error
}

// Contexts is a [Stream] that creates the context of a handler: it adds values, or ends it when the delivery is lost,
// with [ErrLost] or an error that wraps it as the cause. The context derives from parent. cancel ends it, and is called
// when the handler has returned; it may be nil for a context that only adds values.
type Contexts interface {
	Context(parent context.Context, d *Delivery) (ctx context.Context, cancel context.CancelFunc)
}

// Beginner is a [Stream] that can record durably that the handler of a suspect begins. From then on a delivery that
// ends without an answer counts for the messages that had begun, and for no other. Begin fails if the record is not
// durable: the delivery is then not dispatched yet, and with [ErrLost] not at all.
type Beginner interface {
	Begin(ctx context.Context, d *Delivery) error
}

// Watcher is a [Stream] that signals its end at once. Otherwise the engine notices it at the next call of Next, which
// it does not make while the window is full.
type Watcher interface {
	// Gone is closed when the stream has ended: Next fails from then on.
	Gone() <-chan struct{}
}

// Widener is a [Stream] whose window can change. The engine widens it while it is filled with messages that cannot be
// published again, so that others are still consumed, and narrows it afterwards.
type Widener interface {
	Widen(ctx context.Context, window int) error
}

// Namer is a [Transport] with names that the Config's naming scheme alone does not determine.
type Namer interface {
	// NamesFor returns the names of the group on topic; group may be brokers.DefaultGroup.
	NamesFor(topic, group string) brokers.Names
	// NamesOf returns the names of the consumer as it is named in envelope.Origin.
	NamesOf(topic, consumer string) brokers.Names
}

// Addresser is a [Transport] on which the naming scheme determines where a retry without a delay goes. On others topic
// and consumer are enough.
type Addresser interface {
	// RedriveTo returns that place for the consumer of to, for envelope.Origin.
	RedriveTo(to *Destination) string
}

// ReaderCounter is a [Transport] that knows who reads a consumer's queue.
type ReaderCounter interface {
	// Readers returns how many streams in any process read the consumer's queue; 0 also if there is no queue.
	Readers(ctx context.Context, to *Destination) (int, error)
}

// Reacher is a [Transport] that tells its own broker, opened twice, from another one. The engine consults it before it
// reschedules a message that it has not delivered itself; of other transports it only compares the names.
type Reacher interface {
	// Reaches reports whether the consumer that o came from reads what is published to o.To. from has delivered the
	// message; it is nil for a plain subscriber of Watermill. What can never be known is reported as true, because a
	// refusal stops a program that may be right. After an error the message is delivered again.
	Reaches(ctx context.Context, o *Outgoing, from Transport) (bool, error)
}

// Expecter is a [Transport] that prepares waiting places for the waits that pipelines announce for their retries.
type Expecter interface {
	// Expect is called before consumers subscribe, with all waits announced so far, shortest first.
	Expect(delays []time.Duration)
}

// Renewer is a [Stream] that can recreate the original message of a delivery that is dispatched again in place. For
// other streams the engine copies every message before it hands it out.
type Renewer interface {
	Renew(d *Delivery) *message.Message
}

// NackPause is the parameter of every driver whose users may change how long a nacked message is held back. The engine
// reads it; without it the pause is the default.
func NackPause() brokers.Param {
	return brokers.Param{
		Name: "nack-pause", Type: brokers.Duration, Default: "100ms", Min: int64(time.Millisecond), Max: int64(time.Minute),
		Doc: "Pause before a nacked message is delivered again; doubled by each further nack, up to 64 times.",
	}
}

// DefaultCrashLimit is how often a message may end its process before it is a dead letter.
const DefaultCrashLimit = 5

// CrashLimit is the parameter of every driver whose broker counts deliveries. The engine reads it; without it
// [DefaultCrashLimit] applies.
func CrashLimit() brokers.Param {
	return brokers.Param{
		Name: "crash-limit", Type: brokers.Int, Default: strconv.Itoa(DefaultCrashLimit), Max: 1_000_000,
		Doc: "How often a message may kill its process before it is dead-lettered; 0 means that it never is. A message " +
			"that was delivered twice without an answer runs alone.",
	}
}

// WithoutCrashLimit is the option of a subscriber in b that reads for another broker, whose messages wait in b: a dead
// letter would be in a queue of b that belongs to no consumer.
func WithoutCrashLimit(b brokers.Broker) brokers.SubscriberOption {
	return func(c *brokers.SubscriberConfig) {
		if b.Capabilities().DeliveryCount {
			c.Params[CrashLimit().Name] = "0"
		}
	}
}

// Steps is the sorted set of durations that a broker can wait for, on brokers that do not support arbitrary ones. A
// longer or odd delay is split into several of them. The zero value has none.
type Steps []time.Duration

// NewSteps returns the steps for durations, in whole milliseconds, ignoring those that are not positive.
func NewSteps(durations ...time.Duration) Steps {
	var steps Steps
	for _, d := range durations {
		if d > 0 {
			steps = append(steps, CeilMillis(d))
		}
	}
	slices.Sort(steps)
	return slices.Compact(steps)
}

// Pick chooses the next step for a message that is due in rest, and returns how much is left to wait after it. late is
// how late the message may be: a step that is longer by no more than this ends the wait. Otherwise the longest shorter
// step is chosen, or the shortest step if none is shorter. It returns 0 and rest if there are no steps.
func (s Steps) Pick(rest, late time.Duration) (step, left time.Duration) {
	if len(s) == 0 {
		return 0, rest
	}
	rest = CeilMillis(rest)
	i, exact := slices.BinarySearch(s, rest)
	switch {
	case exact, i == 0, i < len(s) && s[i]-rest <= late:
		return s[i], 0
	}
	return s[i-1], rest - s[i-1]
}

// CeilMillis rounds d up to whole milliseconds, so that nothing measured in them is early.
func CeilMillis(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}

// Rest is how long m must still wait at now, according to the time that the engine has written for a transport with
// [Traits.Early]. Call it only for a message from a place where messages wait, because any producer can write the
// header.
func Rest(m *message.Message, now time.Time) time.Duration {
	ms, err := strconv.ParseInt(m.Metadata[envelope.KeyNotBefore], 10, 64)
	if err != nil {
		return 0
	}
	return min(max(time.UnixMilli(ms).Sub(now), 0), envelope.MaxDelay)
}
