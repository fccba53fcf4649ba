package tracing

import (
	"context"
	"log/slog"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
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
	if cfg.Provider == nil {
		cfg.Provider = otel.GetTracerProvider()
	}
	if cfg.Propagator == nil {
		cfg.Propagator = propagation.TraceContext{}
	}
	return &Tracer{cfg: cfg, tracer: cfg.Provider.Tracer(Scope), propagator: cfg.Propagator}
}

// creation is the span context in which the message was published.
func (t *Tracer) creation(m *message.Message) trace.SpanContext {
	return trace.SpanContextFromContext(t.propagator.Extract(context.Background(), propagation.MapCarrier(m.Metadata)))
}

// linkCarrier reads and writes the header that names the previous delivery, in the form of a traceparent.
type linkCarrier struct{ message.Metadata }

// Get implements propagation.TextMapCarrier.
func (c linkCarrier) Get(key string) string {
	if key == envelope.KeyTraceParent {
		return c.Metadata[envelope.KeyTraceLink]
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (c linkCarrier) Set(key, value string) {
	if key == envelope.KeyTraceParent {
		c.Metadata[envelope.KeyTraceLink] = value
	}
}

// Keys implements propagation.TextMapCarrier.
func (c linkCarrier) Keys() []string { return []string{envelope.KeyTraceParent} }

// before is the span of the previous delivery, if the message names it.
func before(m *message.Message) trace.SpanContext {
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), linkCarrier{m.Metadata}))
}

// setLink makes the next delivery link to the span.
func setLink(m *message.Message, sc trace.SpanContext) {
	if m.Metadata == nil {
		m.Metadata = make(message.Metadata, 1)
	}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), linkCarrier{m.Metadata})
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
func system(scheme string) attribute.KeyValue {
	switch scheme {
	case "amqp", "amqps":
		return semconv.MessagingSystemRabbitMQ
	case "kafka":
		return semconv.MessagingSystemKafka
	case "":
		return semconv.MessagingSystemKey.String("unknown")
	default:
		return semconv.MessagingSystemKey.String(scheme)
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
		if o.Broker == "amqp" || o.Broker == "amqps" {
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
