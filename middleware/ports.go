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

// ReschedulerFunc makes a [Rescheduler] of a function.
type ReschedulerFunc func(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error

// Reschedule calls f.
func (f ReschedulerFunc) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message, delay time.Duration) error {
	return f(ctx, origin, m, delay)
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

// RedriveRecorder is told that a message which came back from the dead letters has succeeded. It is optional: a
// [Config.DeadLetters] that has the method is asked.
type RedriveRecorder interface {
	Redriven(ctx context.Context, entryID, messageID string, at time.Time) error
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
func (s Sinks) Redriven(ctx context.Context, entryID, messageID string, at time.Time) error {
	var errs []error
	for _, sink := range s {
		if r, ok := sink.(RedriveRecorder); ok {
			errs = append(errs, r.Redriven(ctx, entryID, messageID, at))
		}
	}
	return errors.Join(errs...)
}
