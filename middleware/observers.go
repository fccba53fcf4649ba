package middleware

import (
	"context"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

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
