package middleware

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// DelayLimiter is a [Rescheduler] that does not wait for any time. A message whose delay is longer, because its handler
// or a header asks for it, comes back after the longest one instead, which counts as usual.
type DelayLimiter interface {
	// LongestDelay is the longest delay. 0 means that the broker cannot delay: messages are then held as with
	// [HoldInMemory], but for ten minutes at most.
	LongestDelay() time.Duration
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

// DeadLetter passes d to every sink and returns the errors of those that failed. A sink without room for d has not
// failed if another has stored it.
func (s Sinks) DeadLetter(ctx context.Context, d *envelope.DeadLetter) error {
	if len(s) == 0 {
		return errors.New("middleware: no dead letter sink")
	}
	_, err := s.store(ctx, d, make([]bool, len(s)))
	return err
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

// Hooks are called after a decision is durable and before the message is acked. A crash in between repeats the hook
// with the message. An error, a panic and a hook that exceeds [Config.HookTimeout] are logged and change nothing; such
// a hook continues in its own goroutine. Hooks are called concurrently, with a context that outlives the message's, and
// must not change their arguments.
type Hooks struct {
	// OnRetry is called when a retry is confirmed by the broker.
	OnRetry func(ctx context.Context, p RetryParams) error
	// OnDeadLetter is called when a dead letter is durable.
	OnDeadLetter func(ctx context.Context, p DeadLetterParams) error
	// OnSkip is called when a message was skipped.
	OnSkip func(ctx context.Context, p SkipParams) error
	// OnDefer is called when a deferral is confirmed by the broker.
	OnDefer func(ctx context.Context, p DeferParams) error
}

// RetryParams are given to [Hooks.OnRetry].
type RetryParams struct {
	// Message is the message as it was received.
	Message  *message.Message
	Decision Decision
	Handler  string
	Origin   envelope.Origin
}

// DeadLetterParams are given to [Hooks.OnDeadLetter].
type DeadLetterParams struct {
	DeadLetter *envelope.DeadLetter
	Decision   Decision
	// Fallback reports that [Config.Fallback] took the dead letter.
	Fallback bool
}

// SkipParams are given to [Hooks.OnSkip]. They have the fields of [RetryParams].
type SkipParams RetryParams

// DeferParams are given to [Hooks.OnDefer]. They have the fields of [RetryParams].
type DeferParams RetryParams

// received are the parameters of a hook for a message that is not dead.
func (d *delivery) received(dec *Decision) RetryParams {
	m := d.message
	if d.next != nil { // a hook may still read it when the handler runs again
		m = message.NewMessage(m.UUID, bytes.Clone(m.Payload))
		m.Metadata = d.message.Metadata
		m.SetContext(d.message.Context())
	}
	return RetryParams{Message: m, Decision: *dec, Handler: d.handler, Origin: d.origin}
}

// hook runs f, unless it is nil, in its own goroutine: otherwise a hook that never returns would block the message.
func hook[P any](p *Pipeline, d *delivery, name string, f func(context.Context, P) error, params P) {
	if f == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.parent), p.cfg.HookTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := ErrGoexit
		defer func() { done <- err }()
		err = guarded(func() error { return f(ctx, params) })
	}()
	start := time.Now()
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = fmt.Errorf("still running after %s", time.Since(start))
	}
	if err != nil {
		p.log(ctx, slog.LevelError, "hook failed; the message is settled anyway",
			slog.String("hook", name), slog.String("handler", d.handler), slog.String("topic", logText(d.origin.Topic)),
			slog.String("message_id", logText(d.attempt.MessageID)), slog.String("error", logText(errorText(err))))
	}
}
