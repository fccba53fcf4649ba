package tracing

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/middleware"
)

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
