package tracing

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

type redriver struct {
	next   middleware.Rescheduler
	tracer *Tracer
}

// Reschedule implements [middleware.Rescheduler].
func (r *redriver) Reschedule(ctx context.Context, origin envelope.Origin, m *message.Message,
	delay time.Duration,
) error {
	ctx, span := r.begin(ctx, &origin, m)
	defer span.End()
	err := r.next.Reschedule(ctx, origin, m, delay)
	fail(span, err)
	return err
}

// begin begins the span and makes the next attempt link to it.
func (r *redriver) begin(ctx context.Context, origin *envelope.Origin, m *message.Message) (context.Context,
	trace.Span,
) {
	parent, died := trace.SpanContextFromContext(ctx), before(m)
	if !died.IsValid() {
		died = r.tracer.creation(m)
	}
	more := originAttributes(origin)
	for _, label := range [...]struct{ name, key string }{
		{"redrive.id", envelope.KeyRedriveID},
		{"redrive.count", envelope.KeyRedriveCount},
		{"redrive.run", envelope.KeyRedriveRun},
	} {
		if value := m.Metadata[label.key]; value != "" {
			more = append(more, attribute.String(label.name, text(value)))
		}
	}
	ctx, span := r.tracer.send(ctx, m, target{origin.Broker, origin.Topic}, links(parent, died), more...)
	if span.SpanContext().IsValid() {
		setLink(m, span.SpanContext())
	}
	return ctx, span
}

type batchRedriver struct {
	redriver

	all batch
}

// RescheduleAll redrives many at once.
func (r *batchRedriver) RescheduleAll(ctx context.Context, origins []envelope.Origin,
	messages []*message.Message,
) []error {
	spans := make([]trace.Span, len(messages))
	for i, m := range messages {
		_, spans[i] = r.begin(ctx, &origins[i], m)
	}
	errs := r.all.RescheduleAll(ctx, origins, messages)
	for i, span := range spans {
		if i < len(errs) {
			fail(span, errs[i])
		}
		span.End()
	}
	return errs
}
