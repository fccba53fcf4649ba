package tracing

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/envelope"
)

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
