package tracing

import (
	"context"
	"errors"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

type spanKey struct{}

// attemptSpan is the span of the delivery that ctx belongs to; nil if it has none of ours.
func attemptSpan(ctx context.Context) trace.Span {
	span, _ := ctx.Value(spanKey{}).(trace.Span)
	return span
}

// process begins the span of an attempt.
func (t *Tracer) process(ctx context.Context, m *message.Message, origin *envelope.Origin,
	more ...attribute.KeyValue,
) (context.Context, trace.Span) {
	created, previous := t.creation(m), before(m)
	attributes := append(t.messageAttributes(m, origin.Broker, origin.Topic),
		semconv.MessagingOperationName("process"), semconv.MessagingOperationTypeProcess)
	attributes = append(append(attributes, originAttributes(origin)...), more...)
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)}
	parent, around := trace.SpanContextFromContext(ctx), trace.SpanContext{}
	// with created as the parent, where there is one
	within := t.propagator.Extract(ctx, propagation.MapCarrier(m.Metadata))
	switch {
	case t.cfg.NewTraces:
		opts, around, parent = append(opts, trace.WithNewRoot()), parent, trace.SpanContext{}
	case created.IsValid():
		around, parent = parent, created
	}
	opts = append(opts, trace.WithAttributes(attributes...), trace.WithLinks(links(parent, created, previous, around)...))
	within, span := t.tracer.Start(within, "process "+origin.Topic, opts...) //nolint:spancheck // the caller ends it
	return context.WithValue(within, spanKey{}, span), span                  //nolint:spancheck // as above
}

// Started implements [middleware.Observer]: it begins the span of an attempt.
func (t *Tracer) Started(ctx context.Context, e middleware.Started) context.Context {
	ctx, _ = t.process(ctx, e.Message, e.Origin, attemptAttributes(e.Delivery)...)
	return ctx
}

func attemptAttributes(d *middleware.Delivery) []attribute.KeyValue {
	list := []attribute.KeyValue{
		semconv.MessagingMessageID(d.Attempt.MessageID), semconv.MessagingMessageBodySize(d.Payload),
		attribute.String("redrive.handler", d.Handler), attribute.Int("redrive.attempt", d.Attempt.Number),
		attribute.Int("redrive.max_attempts", d.Attempt.Max),
	}
	if d.Event != "" {
		list = append(list, attribute.String("redrive.event", text(d.Event)))
	}
	if d.Attempt.RedriveID != "" {
		list = append(list, attribute.String("redrive.id", text(d.Attempt.RedriveID)))
	}
	return list
}

// Finished implements [middleware.Observer]: it ends the span with the outcome. A delivery that was not run gets a span
// with only the outcome.
func (t *Tracer) Finished(ctx context.Context, e middleware.Finished) {
	span := attemptSpan(ctx)
	if span == nil {
		_, span = t.process(ctx, e.Message, e.Origin, attemptAttributes(e.Delivery)...)
	}
	defer span.End()
	span.SetAttributes(attribute.String("redrive.outcome", e.Outcome.String()))
	switch e.Outcome {
	case middleware.OutcomeRetry, middleware.OutcomeDeadLetter, middleware.OutcomeNotSettled:
		fail(span, e.Decision.Err)
	default:
	}
}

// RetryScheduled implements [middleware.Observer].
func (t *Tracer) RetryScheduled(ctx context.Context, e middleware.RetryScheduled) {
	event(ctx, e.Decision.Outcome.String()+" scheduled",
		attribute.Float64("redrive.delay_seconds", e.Decision.Delay.Seconds()))
}

// DeadLettered implements [middleware.Observer].
func (t *Tracer) DeadLettered(ctx context.Context, e middleware.DeadLettered) {
	event(ctx, "dead letter", attribute.String("redrive.reason", string(e.DeadLetter.Reason)),
		attribute.Bool("redrive.fallback", e.Fallback))
}

// PublishFailed implements [middleware.Observer].
func (t *Tracer) PublishFailed(ctx context.Context, e middleware.PublishFailed) {
	event(ctx, "publish failed", attribute.String("redrive.outcome", e.Outcome.String()),
		attribute.Int("redrive.try", e.Try),
		semconv.ExceptionMessage(text(e.Err.Error())))
}

func event(ctx context.Context, name string, attributes ...attribute.KeyValue) {
	if span := attemptSpan(ctx); span != nil {
		span.AddEvent(name, trace.WithAttributes(attributes...))
	}
}

// Stamp implements [middleware.Stamper]: it links messages that are published because of this attempt to it. The
// context of the original publish stays unchanged, except for a message without one.
func (t *Tracer) Stamp(ctx context.Context, m *message.Message) {
	span := attemptSpan(ctx)
	if span == nil || !span.SpanContext().IsValid() {
		return
	}
	if !t.creation(m).IsValid() { //nolint:contextcheck // the message's context, not the current one
		t.inject(ctx, m)
	}
	setLink(m, span.SpanContext()) //nolint:contextcheck // as above
}

// fail marks the span with the handler's error.
func fail(span trace.Span, err error) {
	if err == nil {
		return
	}
	if exhausted, ok := errors.AsType[*middleware.ExhaustedError](err); ok {
		err = exhausted.Err // the outcome has the rest
	}
	span.SetAttributes(semconv.ErrorType(err))
	span.SetStatus(codes.Error, text(err.Error()))
}

// text bounds a text that comes from a message or an error.
func text(s string) string {
	const most = 1 << 10
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "\ufffd")
}

var errUnfinished = errors.New("the handler panicked, or ended its goroutine")

// Middleware passes the attempt's span on to the messages that the handler returns, so that their effects are part of
// the trace. Use it inside the pipeline:
//
//	router.AddMiddleware(pipeline.Middleware, tracer.Middleware)
//
// Without a pipeline it creates the span of the attempt itself.
func (t *Tracer) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) (produced []*message.Message, err error) {
		ctx := m.Context()
		span := attemptSpan(ctx)
		if span == nil {
			origin, ok := envelope.OriginFrom(ctx)
			if !ok {
				origin = &envelope.Origin{Topic: message.SubscribeTopicFromCtx(ctx)}
			}
			within, own := t.process(ctx, m, origin)
			span, err = own, errUnfinished
			m.SetContext(within)
			defer func() {
				m.SetContext(ctx)
				fail(own, err)
				own.End()
			}()
		}
		produced, err = h(m)
		for _, out := range produced {
			if out != nil {
				t.handOn(span, out)
			}
		}
		return produced, err
	}
}

// handOn makes out part of the span's trace, unless it has its own.
func (t *Tracer) handOn(span trace.Span, out *message.Message) {
	if !trace.SpanContextFromContext(out.Context()).IsValid() {
		out.SetContext(trace.ContextWithSpan(out.Context(), span))
	}
	if !t.creation(out).IsValid() {
		t.inject(trace.ContextWithSpan(out.Context(), span), out)
	}
}
