package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// Rescheduler puts a message back in front of the consumer that failed, after a delay. Every broker of this module is
// one. It must be safe for concurrent use.
type Rescheduler interface {
	// Reschedule returns nil when the broker has confirmed that it keeps the message. The message goes to the consumer
	// that origin names and to no other consumer of the topic. m is given away: the implementation may change it.
	Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error
}

// Expecter learns at [New] what it will be used for. It is optional: it is called on a [Config.Rescheduler] that has
// the method, as the brokers of this module do. delays are the waits of retries, as far as they do not depend on the
// message; events are the names of [Config.SystemEvents], which a broker with event names delivers to each of its
// consumers.
type Expecter interface {
	Expect(delays []time.Duration, events []string)
}

// RetryChecker is a [Rescheduler] that knows beforehand which retries it cannot make. [New] asks it about the longest
// delay of each handler that retries, so that a service is refused at start, and not at the first failure.
type RetryChecker interface {
	// CanReschedule returns why a message cannot be put back after delay, and what to change, or nil.
	CanReschedule(delay time.Duration) error
}

// TableWriter is a [Rescheduler] whose messages may come back with headers that are no text, because the broker writes
// them, as RabbitMQ's x-death. A pipeline refuses subscribers that cannot read those.
type TableWriter interface {
	// WritesTables reports whether it may.
	WritesTables() bool
}

// ReschedulerFunc makes a [Rescheduler] of a function.
type ReschedulerFunc func(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error

// Reschedule calls f.
func (f ReschedulerFunc) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message,
	delay time.Duration,
) error {
	return f(ctx, origin, m, delay)
}

// HoldInMemory is the [Rescheduler] of a service that has none: messages that wait are held in memory, unacked, and run
// again in this process. Any Watermill subscriber allows that, but it blocks one that hands out one message at a time,
// and the count of attempts is lost with the process. It reschedules nothing on its own: only [New] knows it.
var HoldInMemory Rescheduler = held{}

type held struct{}

// Reschedule implements Rescheduler.
func (held) Reschedule(context.Context, envelope.Origin, *message.Message, time.Duration) error {
	return errors.New("middleware: HoldInMemory is for Config.Rescheduler only")
}

// DeadLetterSink keeps dead letters. Every broker of this module is one, and so is a dead letter store. It must be
// safe for concurrent use.
type DeadLetterSink interface {
	// DeadLetter returns nil when d is durable. It may be called more than once with the same dead letter, because a
	// call may fail after its work is done. It must not change d.
	DeadLetter(ctx context.Context, d *envelope.DeadLetter) error
}

// DeadLetterFunc makes a [DeadLetterSink] of a function.
type DeadLetterFunc func(ctx context.Context, d *envelope.DeadLetter) error

// DeadLetter calls f.
func (f DeadLetterFunc) DeadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	return f(ctx, d)
}

// RedriveRecorder is notified when a message that came back from the dead letters has succeeded. It is optional: a
// [Config.DeadLetters] that has the method is called.
type RedriveRecorder interface {
	Redriven(ctx context.Context, r envelope.Redriven) error
}

// Sinks keeps every dead letter in several places, for example in a queue and in a store. A pipeline repeats only the
// sinks that failed.
type Sinks []DeadLetterSink

var (
	_ DeadLetterSink  = Sinks(nil)
	_ RedriveRecorder = Sinks(nil)
)

// DeadLetter gives d to every sink and returns the errors of those that failed.
func (s Sinks) DeadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	var errs []error
	for _, sink := range s {
		errs = append(errs, sink.DeadLetter(ctx, d))
	}
	return errors.Join(errs...)
}

// Redriven tells every sink that is a [RedriveRecorder].
func (s Sinks) Redriven(ctx context.Context, success envelope.Redriven) error {
	var errs []error
	for _, sink := range s {
		if r, ok := sink.(RedriveRecorder); ok {
			errs = append(errs, r.Redriven(ctx, success))
		}
	}
	return errors.Join(errs...)
}
