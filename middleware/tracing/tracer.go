package tracing

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
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
