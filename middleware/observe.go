package middleware

import (
	"context"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

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

// finished notifies the observer of a handler that has returned no error.
//
//go:noinline
func (r *run) finished(outcome Outcome) {
	p, parent := r.pipeline, r.context.parent // includes the observer's values
	defer p.observerPanic(parent)
	p.cfg.Observer.Finished(parent, Finished{
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

func (p *Pipeline) logSuccess(parent context.Context, r *run) {
	d := &delivery{
		message: r.message, parent: parent, control: r.context.control, handler: p.handlerName(parent),
		origin: originOf(parent), attempt: r.context.attempt(),
	}
	attrs := p.deliveryAttrs(d)
	if r.start != untimed {
		attrs = append(attrs, slog.Duration("duration", r.took))
	}
	p.log(parent, slog.LevelDebug, "message handled", attrs...)
}
