package middleware

import (
	"context"
	"log/slog"
	"slices"
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

// ServiceBusExhausted is the reason that metrics of a service bus give for a message with no attempt left.
const ServiceBusExhausted = "max_retries_exceeded"

// ServiceBusReason returns the reason of a dead letter as the metrics of a service bus name it. A message whose last
// attempt panicked has no attempt left either.
func (d DeadLettered) ServiceBusReason() string {
	r := d.DeadLetter.Reason
	if r == envelope.ReasonExhausted || r == envelope.ReasonPanic && d.Attempt.IsLast() {
		return ServiceBusExhausted
	}
	return string(r)
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

// Observers notifies several observers in order, for example metrics and traces. If one panics, those after it miss
// that event.
type Observers []Observer

var _ Stamper = Observers(nil)

// Started notifies every observer. Each gets the context that the one before it returned.
func (o Observers) Started(ctx context.Context, e Started) context.Context {
	for _, each := range o {
		if derived := each.Started(ctx, e); derived != nil {
			ctx = derived //nolint:fatcontext // one level per observer
		}
	}
	return ctx
}

// Finished notifies every observer in reverse order, so that the first to start finishes last.
func (o Observers) Finished(ctx context.Context, e Finished) {
	for _, each := range slices.Backward(o) {
		each.Finished(ctx, e)
	}
}

// RetryScheduled notifies every observer.
func (o Observers) RetryScheduled(ctx context.Context, e RetryScheduled) {
	notify(ctx, o, Observer.RetryScheduled, e)
}

// DeadLettered notifies every observer.
func (o Observers) DeadLettered(ctx context.Context, e DeadLettered) {
	notify(ctx, o, Observer.DeadLettered, e)
}

// PublishFailed notifies every observer.
func (o Observers) PublishFailed(ctx context.Context, e PublishFailed) {
	notify(ctx, o, Observer.PublishFailed, e)
}

// BreakerChanged notifies every observer.
func (o Observers) BreakerChanged(ctx context.Context, e BreakerChanged) {
	notify(ctx, o, Observer.BreakerChanged, e)
}

func notify[E any](ctx context.Context, o Observers, method func(Observer, context.Context, E), e E) {
	for _, each := range o {
		method(each, ctx, e)
	}
}

// Stamp lets every observer that is a [Stamper] add its headers.
func (o Observers) Stamp(ctx context.Context, m *message.Message) {
	for _, each := range o {
		if s, ok := each.(Stamper); ok {
			s.Stamp(ctx, m)
		}
	}
}

// observation is a delivery as observers see it, with an origin even if the subscriber has not provided one.
type observation struct {
	Delivery

	origin envelope.Origin
}

// describe fills in the observer's view of the delivery, once, while the message is still as it was received.
func (r *run) describe() {
	m, o := r.message, &r.observed
	parent := m.Context()
	o.Message, o.Handler, o.Event, o.Payload = m, r.pipeline.handlerName(parent), envelope.EventName(m), len(m.Payload)
	o.Attempt = r.context.attempt()
	var ok bool
	if o.Origin, ok = envelope.OriginFrom(parent); !ok {
		o.origin.Topic = message.SubscribeTopicFromCtx(parent)
		o.Origin = &o.origin
	}
}

// observeStarted makes the context that the observer returns the parent of the handler's.
//
//go:noinline
func (r *run) observeStarted() {
	p := r.pipeline
	r.describe()
	defer p.observerPanic(r.parent)
	if derived := p.cfg.Observer.Started(r.parent, Started{&r.observed.Delivery}); derived != nil {
		r.context.parent = derived
	}
}

// finished notifies the observer, if there is one, of a handler that has returned no error.
//
//go:noinline
func (r *run) finished(outcome Outcome) {
	observe(r.context.parent, r.pipeline, Observer.Finished, Finished{ // the parent includes the observer's values
		Delivery: &r.observed.Delivery, Outcome: outcome, Ran: true, Duration: r.took,
	})
}

// observe calls a method of the observer, if there is one, with e.
func observe[E any](ctx context.Context, p *Pipeline, method func(Observer, context.Context, E), e E) {
	if p.cfg.Observer != nil {
		defer p.observerPanic(ctx)
		method(p.cfg.Observer, ctx, e)
	}
}

// observerPanic must be deferred directly: recover does not work in nested calls.
func (p *Pipeline) observerPanic(ctx context.Context) {
	if r := recover(); r != nil {
		p.logObserverPanic(ctx, newPanicError(r))
	}
}

//go:noinline
func (p *Pipeline) logObserverPanic(ctx context.Context, err *PanicError) {
	p.log(ctx, slog.LevelError, "observer panicked", slog.String("error", err.Error()))
}

// stamp lets an observer that is a [Stamper] add headers to a message before it is published.
func (p *Pipeline) stamp(ctx context.Context, m *message.Message) {
	if p.stamper == nil {
		return
	}
	defer p.observerPanic(ctx)
	p.stamper.Stamp(ctx, m)
}
