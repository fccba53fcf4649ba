package middleware

import (
	"context"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Observers tells several observers, in their order: metrics and traces, for example. A panic in one keeps those behind
// it from being told of that event.
type Observers []Observer

var _ Stamper = Observers(nil)

// Started tells every observer. Each gets the context that the one before it returned.
func (o Observers) Started(ctx context.Context, e Started) context.Context {
	for _, each := range o {
		if derived := each.Started(ctx, e); derived != nil {
			ctx = derived //nolint:fatcontext // as deep as there are observers
		}
	}
	return ctx
}

// Finished tells every observer, the last one first: who began first ends last.
func (o Observers) Finished(ctx context.Context, e Finished) {
	for _, each := range slices.Backward(o) {
		each.Finished(ctx, e)
	}
}

// RetryScheduled tells every observer.
func (o Observers) RetryScheduled(ctx context.Context, e RetryScheduled) {
	for _, each := range o {
		each.RetryScheduled(ctx, e)
	}
}

// DeadLettered tells every observer.
func (o Observers) DeadLettered(ctx context.Context, e DeadLettered) {
	for _, each := range o {
		each.DeadLettered(ctx, e)
	}
}

// PublishFailed tells every observer.
func (o Observers) PublishFailed(ctx context.Context, e PublishFailed) {
	for _, each := range o {
		each.PublishFailed(ctx, e)
	}
}

// BreakerChanged tells every observer.
func (o Observers) BreakerChanged(ctx context.Context, e BreakerChanged) {
	for _, each := range o {
		each.BreakerChanged(ctx, e)
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
