package middleware

import (
	"context"
	"log/slog"
	"time"
)

// observed is the delivery as an observer sees it.
func (p *Pipeline) observed(r *running) Delivery {
	parent := r.message.Context()
	return Delivery{Message: r.message, Handler: p.handlerName(parent), Origin: originOf(parent), Attempt: r.context.attempt(), Payload: len(r.message.Payload)}
}

func (d *delivery) observed() Delivery {
	return Delivery{Message: d.message, Handler: d.handler, Origin: d.origin, Attempt: d.attempt, Payload: len(d.message.Payload)}
}

// observeStarted returns the context for the handler; the message's own when the observer has none to give.
func (p *Pipeline) observeStarted(parent context.Context, r *running) (ctx context.Context) {
	ctx = parent
	defer p.observerPanic(parent)
	if derived := p.cfg.Observer.Started(parent, Started{p.observed(r)}); derived != nil {
		ctx = derived
	}
	return ctx
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
		p.cfg.Logger.LogAttrs(ctx, slog.LevelError, "observer panicked", slog.String("error", newPanicError(r).Error()))
	}
}

func (p *Pipeline) logSuccess(r *running) {
	parent := r.message.Context()
	d := &delivery{message: r.message, parent: parent, control: r.context.control, handler: p.handlerName(parent), origin: originOf(parent), attempt: r.context.attempt()}
	attrs := p.deliveryAttrs(d)
	if !r.start.IsZero() {
		attrs = append(attrs, slog.Duration("duration", time.Since(r.start)))
	}
	p.cfg.Logger.LogAttrs(parent, slog.LevelDebug, "message handled", attrs...)
}
