package tracing

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// Publisher traces messages published through next, the publisher of a broker with the given URL scheme (amqp, kafka,
// ...). Each message gets a span, whose context is added to the headers of a copy: the caller's message is not changed.
// The span's parent is the one in the message's context. Closing it closes next.
func (t *Tracer) Publisher(next message.Publisher, scheme string) message.Publisher {
	return &publisher{next, t, scheme}
}

type publisher struct {
	message.Publisher

	tracer *Tracer
	scheme string
}

// String is the name of the publisher that is traced in Watermill's contexts and metrics.
func (p *publisher) String() string {
	if named, ok := p.Publisher.(fmt.Stringer); ok {
		return named.String()
	}
	return "tracing.Publisher"
}

// Publish implements message.Publisher. The spans of one call end together.
func (p *publisher) Publish(topic string, messages ...*message.Message) error {
	traced := make([]*message.Message, len(messages))
	spans := make([]trace.Span, len(messages))
	for i, m := range messages {
		ctx, created := m.Context(), p.tracer.creation(m)
		parent := trace.SpanContextFromContext(ctx)
		if !parent.IsValid() && created.IsValid() { // published before, and forwarded
			ctx, parent = trace.ContextWithRemoteSpanContext(ctx, created), created
		}
		ctx, spans[i] = p.tracer.send(ctx, m, target{p.scheme, topic}, links(parent, created))
		traced[i] = m.Copy()
		traced[i].SetContext(ctx)
		p.tracer.inject(ctx, traced[i])
	}
	err := p.Publisher.Publish(topic, traced...)
	for _, span := range spans {
		fail(span, err)
		span.End()
	}
	return err
}

// target is where a message is published.
type target struct{ scheme, topic string }

// send begins the span of a publish.
func (t *Tracer) send(ctx context.Context, m *message.Message, at target, to []trace.Link,
	more ...attribute.KeyValue,
) (context.Context, trace.Span) {
	attributes := append(t.messageAttributes(m, at.scheme, at.topic), semconv.MessagingOperationName("send"),
		semconv.MessagingOperationTypeSend,
		semconv.MessagingMessageBodySize(len(m.Payload)))
	if id := m.Metadata[envelope.KeyMessageID]; id != "" {
		attributes = append(attributes, semconv.MessagingMessageID(text(id)))
	}
	opts := []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(append(attributes, more...)...),
		trace.WithLinks(to...),
	}
	return t.tracer.Start(ctx, "send "+at.topic, opts...) //nolint:spancheck // the caller ends it
}

// Redriver traces the redrives through next: a broker, or any other dlq.Redriver of a Manager. Each gets a span in the
// operator's trace that links to the attempt that died, and the next attempt links to the redrive. If next supports
// batches (RescheduleAll), so does the result.
func (t *Tracer) Redriver(next middleware.Rescheduler) middleware.Rescheduler {
	one := &redriver{next, t}
	if all, ok := next.(batch); ok {
		return &batchRedriver{*one, all}
	}
	return one
}

// batch is an optional ability of a redriver (redrive.BatchRedriver).
type batch interface {
	RescheduleAll(ctx context.Context, origins []envelope.Origin, messages []*message.Message) []error
}

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
