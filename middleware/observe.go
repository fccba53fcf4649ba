package middleware

import (
	"context"
	"log/slog"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// observation is what an observer is notified of a delivery. It is used again: on the heap of each delivery it would
// cost more than all that an observer does with it.
type observation struct {
	Delivery

	origin envelope.Origin // where the subscriber has given none
}

var observations = sync.Pool{New: func() any { return new(observation) }}

// forget returns what describe has filled in, when the delivery is settled.
func (c *attemptContext) forget() {
	o := c.observed
	c.observed = nil
	o.Message, o.Origin = nil, nil // what is large; the texts are those of one message
	observations.Put(o)
}

// describe fills in what an observer sees of the delivery, once, while the message is as it was received.
func (p *Pipeline) describe(m *message.Message, c *attemptContext) {
	parent := m.Context()
	o := c.observed
	o.Message, o.Handler, o.Event, o.Attempt, o.Payload = m, p.handlerName(parent), envelope.EventName(m), c.attempt(), len(m.Payload)
	var ok bool
	if o.Origin, ok = envelope.OriginFrom(parent); !ok {
		o.guessOrigin(parent)
	}
}

//go:noinline
func (o *observation) guessOrigin(parent context.Context) {
	o.origin = originOf(parent)
	o.Origin = &o.origin
}

// observeStarted makes the context that the observer returns the parent of the handler's.
//
//go:noinline
func (r *run) observeStarted() {
	p := r.pipeline
	p.describe(r.message, r.context)
	defer p.observerPanic(r.parent)
	if derived := p.cfg.Observer.Started(r.parent, Started{&r.context.observed.Delivery}); derived != nil {
		r.context.parent = derived
	}
}

func (p *Pipeline) observeFinished(ctx context.Context, e Finished) {
	defer p.observerPanic(ctx)
	p.cfg.Observer.Finished(ctx, e)
}

func (p *Pipeline) observeRescheduled(ctx context.Context, e RetryScheduled) {
	defer p.observerPanic(ctx)
	p.cfg.Observer.RetryScheduled(ctx, e)
}

func (p *Pipeline) observeDeadLettered(ctx context.Context, e DeadLettered) {
	defer p.observerPanic(ctx)
	p.cfg.Observer.DeadLettered(ctx, e)
}

func (p *Pipeline) observePublishFailed(ctx context.Context, e PublishFailed) {
	defer p.observerPanic(ctx)
	p.cfg.Observer.PublishFailed(ctx, e)
}

func (p *Pipeline) observeBreaker(ctx context.Context, e BreakerChanged) {
	defer p.observerPanic(ctx)
	p.cfg.Observer.BreakerChanged(ctx, e)
}

// observerPanic must be deferred itself: recover works in no function further down.
func (p *Pipeline) observerPanic(ctx context.Context) {
	if r := recover(); r != nil {
		p.log(ctx, slog.LevelError, "observer panicked", slog.String("error", newPanicError(r).Error()))
	}
}

// stamp lets an observer that is a [Stamper] add headers to a message that is about to be published.
func (p *Pipeline) stamp(ctx context.Context, m *message.Message) {
	if p.stamper == nil {
		return
	}
	defer p.observerPanic(ctx)
	p.stamper.Stamp(ctx, m)
}

func (p *Pipeline) logSuccess(parent context.Context, r *run) {
	d := &delivery{message: r.message, parent: parent, control: r.context.control, handler: p.handlerName(parent), origin: originOf(parent), attempt: r.context.attempt()}
	attrs := p.deliveryAttrs(d)
	if r.start != untimed {
		attrs = append(attrs, slog.Duration("duration", r.took))
	}
	p.log(parent, slog.LevelDebug, "message handled", attrs...)
}
