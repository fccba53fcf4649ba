package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// Observer is notified of what a pipeline does, for metrics and traces. Its methods are called in the message's path:
// they must be fast, safe for concurrent use, and must not change messages. A panic in one of them is logged and
// changes nothing. Embed [NopObserver] to stay compatible when methods are added. [Observers] combines several.
type Observer interface {
	// Started is called before an attempt. It returns a context that is derived from ctx and ends no earlier. The contexts
	// of the handler, of the publishes and log lines that settle the delivery, and of the other methods are derived from
	// it, except for deliveries that were not started.
	Started(ctx context.Context, e Started) context.Context
	// Finished is called when the outcome of a delivery is known, before it is acked or nacked. Deliveries that were not
	// run (malformed, deferred by an open circuit) are finished without having been started.
	Finished(ctx context.Context, e Finished)
	// RetryScheduled is called when the broker has confirmed a retry or a deferral.
	RetryScheduled(ctx context.Context, e RetryScheduled)
	// DeadLettered is called when a dead letter is durable.
	DeadLettered(ctx context.Context, e DeadLettered)
	// PublishFailed is called for every failed attempt to publish a retry or a dead letter.
	PublishFailed(ctx context.Context, e PublishFailed)
	// BreakerChanged is called when a circuit opens, half-opens or closes.
	BreakerChanged(ctx context.Context, e BreakerChanged)
}

// Delivery is common to all events of one delivery. It is only valid during the call and reused for another delivery
// afterwards: copy it to keep it or to pass it to a goroutine.
type Delivery struct {
	Message *message.Message
	Handler string
	// Event is the event's name, or "" if the message has none.
	Event string
	// Origin is never nil, and belongs to the subscriber.
	Origin  *envelope.Origin
	Attempt Attempt
	// Payload is the payload's size in bytes, as received.
	Payload int
}

// Started is given to [Observer.Started].
type Started struct{ *Delivery }

// Finished is given to [Observer.Finished].
type Finished struct {
	*Delivery

	Outcome Outcome
	// Ran is false for a delivery that was not started.
	Ran bool
	// Duration is how long the handler ran.
	Duration time.Duration
	// Decision is zero after a success.
	Decision Decision
}

// RetryScheduled is given to [Observer.RetryScheduled].
type RetryScheduled struct {
	*Delivery

	// Decision.Outcome distinguishes retries from deferrals.
	Decision Decision
}

// DeadLettered is given to [Observer.DeadLettered].
type DeadLettered struct {
	*Delivery

	Decision   Decision
	DeadLetter *envelope.DeadLetter
	// Fallback reports that [Config.Fallback] took the dead letter.
	Fallback bool
}

// PublishFailed is given to [Observer.PublishFailed].
type PublishFailed struct {
	*Delivery

	// Outcome is the kind of publication: [OutcomeRetry], [OutcomeDefer] or [OutcomeDeadLetter].
	Outcome Outcome
	// Try counts from 1.
	Try int
	Err error
}

// BreakerChanged is given to [Observer.BreakerChanged].
type BreakerChanged struct {
	// Key is the circuit's key: the handler's name, unless [Breaker.Key] is set.
	Key string
	// From and To are "closed", "open" or "half-open".
	From, To string
}

// Stamper is an [Observer] that adds headers to messages that are published because of a failure, such as the trace
// that they belong to.
type Stamper interface {
	Observer
	// Stamp is called for every retry, deferral and dead letter before it is published or held, with the context that
	// Started returned. It may add headers to m and change nothing else. It may be called more than once for one delivery.
	Stamp(ctx context.Context, m *message.Message)
}

// NopObserver is an [Observer] that does nothing, for embedding.
type NopObserver struct{}

var _ Observer = NopObserver{}

// Started returns ctx.
func (NopObserver) Started(ctx context.Context, _ Started) context.Context { return ctx }

// Finished does nothing.
func (NopObserver) Finished(context.Context, Finished) {}

// RetryScheduled does nothing.
func (NopObserver) RetryScheduled(context.Context, RetryScheduled) {}

// DeadLettered does nothing.
func (NopObserver) DeadLettered(context.Context, DeadLettered) {}

// PublishFailed does nothing.
func (NopObserver) PublishFailed(context.Context, PublishFailed) {}

// BreakerChanged does nothing.
func (NopObserver) BreakerChanged(context.Context, BreakerChanged) {}
