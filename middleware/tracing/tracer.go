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
	// Provider makes the spans. Defaults to the global one, as it is when New is called.
	Provider trace.TracerProvider
	// Propagator writes and reads the context that travels in headers. Defaults to W3C trace context; the global one is
	// not asked, because without an SDK's configuration none is set, and traces would break at every queue.
	Propagator propagation.TextMapPropagator
	// NewTraces begins a trace for each attempt, linked to the publish, instead of one trace for all.
	NewTraces bool
	// Attributes are put on every span.
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

// creation is the span context that the message was published in.
func (t *Tracer) creation(m *message.Message) trace.SpanContext {
	return trace.SpanContextFromContext(t.propagator.Extract(context.Background(), propagation.MapCarrier(m.Metadata)))
}

// linkCarrier reads and writes the header that names the delivery before, in the form of a traceparent.
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

// before is the span of the delivery before, as far as the message tells.
func before(m *message.Message) trace.SpanContext {
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), linkCarrier{m.Metadata}))
}

// setLink makes the span the one that the next delivery links to.
func setLink(m *message.Message, sc trace.SpanContext) {
	if m.Metadata == nil {
		m.Metadata = make(message.Metadata, 1)
	}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), linkCarrier{m.Metadata})
}

// inject makes the span in ctx the one that the message was published in.
func (t *Tracer) inject(ctx context.Context, m *message.Message) {
	if m.Metadata == nil {
		m.Metadata = make(message.Metadata, 1)
	}
	t.propagator.Inject(ctx, propagation.MapCarrier(m.Metadata))
}

// links are those to spans that are there and are not the parent.
func links(parent trace.SpanContext, to ...trace.SpanContext) []trace.Link {
	var list []trace.Link
	for _, sc := range to {
		if sc.IsValid() && sc.SpanID() != parent.SpanID() {
			list = append(list, trace.Link{SpanContext: sc})
		}
	}
	return list
}
