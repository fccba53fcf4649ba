package tracing

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/scheme"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/internal/errtree"
)

// Scope is the name of the instrumentation.
const Scope = "github.com/redrive-go/redrive/middleware/tracing"

// Config describes how to trace. The zero Config is ready for use.
type Config struct {
	// Provider creates the spans. Defaults to the global one at the time when New is called.
	Provider trace.TracerProvider
	// Propagator writes and reads the context in headers. Defaults to W3C trace context; the global one is not used,
	// because without an SDK's configuration none is set, and traces would break at every queue.
	Propagator propagation.TextMapPropagator
	// NewTraces begins a trace for each attempt, linked to the publish, instead of one trace for all of them.
	NewTraces bool
	// Attributes are added to every span.
	Attributes []attribute.KeyValue
}

// Tracer traces publishes, attempts and redrives. It is safe for concurrent use and has nothing to close.
type Tracer struct {
	middleware.NopObserver

	cfg        Config
	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
}

var _ middleware.Stamper = (*Tracer)(nil)

// New makes a Tracer.
func New(cfg Config) *Tracer {
	cfg.Provider = cmp.Or(cfg.Provider, otel.GetTracerProvider())
	cfg.Propagator = cmp.Or[propagation.TextMapPropagator](cfg.Propagator, propagation.TraceContext{})
	return &Tracer{cfg: cfg, tracer: cfg.Provider.Tracer(Scope), propagator: cfg.Propagator}
}

// creation is the span context in which the message was published.
func (t *Tracer) creation(m *message.Message) trace.SpanContext {
	return trace.SpanContextFromContext(t.propagator.Extract(context.Background(), propagation.MapCarrier(m.Metadata)))
}

// before is the span of the previous delivery, which a header names in the form of a traceparent.
func before(m *message.Message) trace.SpanContext {
	link := propagation.MapCarrier{envelope.KeyTraceParent: m.Metadata[envelope.KeyTraceLink]}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), link))
}

// setLink makes the next delivery link to the span.
func setLink(m *message.Message, sc trace.SpanContext) {
	if m.Metadata == nil {
		m.Metadata = make(message.Metadata, 1)
	}
	link := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), link)
	m.Metadata[envelope.KeyTraceLink] = link[envelope.KeyTraceParent]
}

// inject records the span in ctx as the one in which the message was published.
func (t *Tracer) inject(ctx context.Context, m *message.Message) {
	if m.Metadata == nil {
		m.Metadata = make(message.Metadata, 1)
	}
	t.propagator.Inject(ctx, propagation.MapCarrier(m.Metadata))
}

// links are the links to existing spans that are not the parent.
func links(parent trace.SpanContext, to ...trace.SpanContext) []trace.Link {
	var list []trace.Link
	for _, sc := range to {
		if sc.IsValid() && sc.SpanID() != parent.SpanID() {
			list = append(list, trace.Link{SpanContext: sc})
		}
	}
	return list
}

// system is the messaging.system of a broker's URL scheme.
func system(broker string) attribute.KeyValue {
	switch scheme.Native(broker) {
	case "amqp":
		return semconv.MessagingSystemRabbitMQ
	case "kafka":
		return semconv.MessagingSystemKafka
	case "":
		return semconv.MessagingSystemKey.String("unknown")
	default:
		return semconv.MessagingSystemKey.String(broker)
	}
}

func (t *Tracer) messageAttributes(m *message.Message, scheme, topic string) []attribute.KeyValue {
	list := make([]attribute.KeyValue, 0, 20)
	list = append(append(list, t.cfg.Attributes...), system(scheme), semconv.MessagingDestinationName(topic))
	if id := envelope.CorrelationID(m); id != "" {
		list = append(list, semconv.MessagingMessageConversationID(text(id)))
	}
	return list
}

func originAttributes(o *envelope.Origin) []attribute.KeyValue {
	var list []attribute.KeyValue
	if o.Consumer != "" {
		if scheme.Same(o.Broker, "amqp") {
			list = append(list, semconv.MessagingDestinationSubscriptionName(o.Consumer)) // the queue
		} else {
			list = append(list, semconv.MessagingConsumerGroupName(o.Consumer))
		}
	}
	if o.RoutingKey != "" {
		list = append(list, semconv.MessagingRabbitMQDestinationRoutingKey(text(o.RoutingKey)))
	}
	if o.Partition != nil {
		list = append(list, semconv.MessagingDestinationPartitionID(strconv.Itoa(int(*o.Partition))))
	}
	if o.Broker == "kafka" && o.Offset != nil {
		list = append(list, semconv.MessagingKafkaOffset(int(*o.Offset)))
	}
	return list
}

// LogHandler adds trace_id and span_id to records whose context has a span, and message_id and attempt to a handler's
// own records that are logged with its context. The pipeline's records already have the latter two.
func LogHandler(next slog.Handler) slog.Handler { return logHandler{next} }

type logHandler struct{ slog.Handler }

// Handle implements slog.Handler.
func (h logHandler) Handle(ctx context.Context, r slog.Record) error {
	var attrs []slog.Attr
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		attrs = append(attrs, slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String()))
	}
	if a, ok := middleware.AttemptFrom(ctx); ok {
		attrs = append(attrs, slog.String("message_id", text(a.MessageID)), slog.Int("attempt", a.Number))
	}
	if len(attrs) > 0 {
		r = r.Clone()
		r.AddAttrs(attrs...)
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h logHandler) WithGroup(name string) slog.Handler { return logHandler{h.Handler.WithGroup(name)} }

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
	err = errtree.Finite(err)
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
