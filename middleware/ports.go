package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// Rescheduler delivers a message again to the consumer that failed, after a delay. Every broker of this module is one.
// It must be safe for concurrent use.
type Rescheduler interface {
	// Reschedule returns nil when the broker has confirmed that it stores the message. The message goes to the consumer
	// named by origin and to no other consumer of the topic. Reschedule owns m and may change it.
	Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error
}

// Expecter learns at [New] how it will be used. It is optional: a [Config.Rescheduler] that has the method is called,
// and the brokers of this module do. delays are the waits of retries, as far as they do not depend on the message;
// events are the names of [Config.SystemEvents], which a broker with event names delivers to each of its consumers.
type Expecter interface {
	Expect(delays []time.Duration, events []string)
}

// RetryChecker is a [Rescheduler] that knows in advance which retries it does not support. [New] asks about the longest
// delay of each handler that retries, so that a service is refused at start rather than at the first failure.
type RetryChecker interface {
	// CanReschedule returns why a message cannot be rescheduled after delay, and what to change, or nil.
	CanReschedule(delay time.Duration) error
}

// TableWriter is a [Rescheduler] whose messages may be redelivered with headers that are not text, because the broker
// writes them, such as RabbitMQ's x-death. A pipeline refuses subscribers that cannot read those.
type TableWriter interface {
	// WritesTables reports whether it may.
	WritesTables() bool
}

// ReschedulerFunc adapts a function to [Rescheduler].
type ReschedulerFunc func(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error

// Reschedule calls f.
func (f ReschedulerFunc) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message,
	delay time.Duration,
) error {
	return f(ctx, origin, m, delay)
}

// HoldInMemory is the [Rescheduler] of a service without one: waiting messages are held in memory, unacked, and run
// again in this process. Any Watermill subscriber allows this, but it blocks one that delivers one message at a time,
// and the count of attempts is lost with the process. It is only a marker for [New] and reschedules nothing.
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

// DeadLetterFunc adapts a function to [DeadLetterSink].
type DeadLetterFunc func(ctx context.Context, d *envelope.DeadLetter) error

// DeadLetter calls f.
func (f DeadLetterFunc) DeadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	return f(ctx, d)
}

// RedriveRecorder is notified when a redriven message has succeeded. It is optional: a [Config.DeadLetters] that has
// the method is called.
type RedriveRecorder interface {
	Redriven(ctx context.Context, r envelope.Redriven) error
}

// Sinks stores every dead letter in several places, for example in a queue and in a store. A pipeline retries only the
// sinks that failed.
type Sinks []DeadLetterSink

var (
	_ DeadLetterSink  = Sinks(nil)
	_ RedriveRecorder = Sinks(nil)
)

// DeadLetter passes d to every sink and returns the errors of those that failed.
func (s Sinks) DeadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	var errs []error
	for _, sink := range s {
		errs = append(errs, sink.DeadLetter(ctx, d))
	}
	return errors.Join(errs...)
}

// Redriven notifies every sink that is a [RedriveRecorder].
func (s Sinks) Redriven(ctx context.Context, success envelope.Redriven) error {
	var errs []error
	for _, sink := range s {
		if r, ok := sink.(RedriveRecorder); ok {
			errs = append(errs, r.Redriven(ctx, success))
		}
	}
	return errors.Join(errs...)
}
