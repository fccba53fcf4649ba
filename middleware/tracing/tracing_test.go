package tracing_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/tracing"
	"github.com/redrive-go/redrive/middleware/tracing/tracingtest"
)

func TestTracing_Memory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, err := memory.New(brokers.Config{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		tracingtest.Run(t, tracingtest.Broker{
			Scheme: "mem", System: "mem", Publisher: b.Publisher(), Subscriber: b.Subscriber(), Rescheduler: b, DeadLetters: b,
		})
	})
}

type world struct {
	spans    *tracetest.InMemoryExporter
	provider *sdk.TracerProvider
	tracer   *tracing.Tracer
}

func newWorld(cfg tracing.Config) *world {
	w := &world{spans: tracetest.NewInMemoryExporter()}
	w.provider = sdk.NewTracerProvider(sdk.WithSyncer(w.spans))
	cfg.Provider = w.provider
	w.tracer = tracing.New(cfg)
	return w
}

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func order(traceparent string) *message.Message {
	m := message.NewMessage("1", message.Payload("{}"))
	if traceparent != "" {
		m.Metadata[envelope.KeyTraceParent] = traceparent
	}
	m.SetContext(envelope.WithOrigin(context.Background(),
		&envelope.Origin{Broker: "amqp", Topic: "orders", Consumer: "billing", RoutingKey: "order.placed"}))
	return m
}

// endlessError wraps itself: errors.As never returned, and held the consumer forever.
type endlessError struct{}

func (e endlessError) Error() string { return "endless: " + e.Unwrap().Error() }
func (e endlessError) Unwrap() error { return e }

// Without a pipeline the middleware makes the span, whatever the handler does.
func TestMiddleware_Alone(t *testing.T) {
	w := newWorld(tracing.Config{})
	m := order(parent)
	produced, err := w.tracer.Middleware(func(m *message.Message) ([]*message.Message, error) {
		require.True(t, trace.SpanContextFromContext(m.Context()).IsValid())
		return message.Messages{message.NewMessage("2", nil), nil}, nil
	})(m)
	require.NoError(t, err)
	require.False(t, trace.SpanContextFromContext(m.Context()).IsValid(), "the message has its own context again")
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", envelope.TraceID(produced[0].Metadata),
		"also where the publisher does not trace")
	_, err = w.tracer.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, errors.New("no")
	})(order(parent))
	require.Error(t, err)
	_, err = w.tracer.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, endlessError{}
	})(order(parent))
	require.ErrorAs(t, err, new(endlessError))
	require.Panics(t, func() {
		_, _ = w.tracer.Middleware(func(*message.Message) ([]*message.Message, error) { panic("no") })(order(parent))
	})
	spans := w.spans.GetSpans()
	require.Len(t, spans, 4)
	const endless = "tracing_test.endlessError that wraps itself, or too many others"
	for i, want := range []string{"", "no", endless, "the handler panicked, or ended its goroutine"} {
		require.Equal(t, want, spans[i].Status.Description)
	}
}

// Attempts may have their own traces, which link to the publish.
func TestTracer_NewTraces(t *testing.T) {
	w := newWorld(tracing.Config{NewTraces: true})
	_, err := w.tracer.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(order(parent))
	require.NoError(t, err)
	span := w.spans.GetSpans()[0]
	require.False(t, span.Parent.IsValid())
	require.Equal(t, "b7ad6b7169203331", span.Links[0].SpanContext.SpanID().String())
}

// A message from a producer that does not trace gets a trace at its first failure; a malformed one has a span although
// it is not run.
func TestTracer_UntracedAndUnstarted(t *testing.T) {
	w := newWorld(tracing.Config{})
	var retried *message.Message
	pipeline, err := middleware.New(middleware.Config{
		Observer: w.tracer, Logger: slog.New(slog.DiscardHandler),
		Rescheduler: middleware.ReschedulerFunc(
			func(_ context.Context, _ envelope.Origin, m *message.Message, _ time.Duration) error {
				retried = m
				return nil
			}),
		DeadLetters: middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { return nil }),
	})
	require.NoError(t, err)
	_, err = pipeline.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, errors.New("no")
	})(order(""))
	require.NoError(t, err)
	first := w.spans.GetSpans()[0]
	require.Equal(t, first.SpanContext.TraceID().String(), envelope.TraceID(retried.Metadata))

	broken := order(parent)
	broken.Metadata[envelope.KeyContentType] = envelope.ContentType
	broken.Payload = message.Payload("{")
	_, err = pipeline.Middleware(nil)(broken)
	require.NoError(t, err)
	spans := w.spans.GetSpans()
	require.Len(t, spans, 2)
	require.Equal(t, "0af7651916cd43dd8448eb211c80319c", spans[1].SpanContext.TraceID().String())
	require.NotEmpty(t, spans[1].Status.Description)
}

// many is a redriver that accepts batches.
type many struct {
	middleware.Rescheduler

	got []*message.Message
}

func (m *many) RescheduleAll(_ context.Context, _ []envelope.Origin, messages []*message.Message) []error {
	m.got = messages
	return []error{nil, errors.New("refused")}
}

// A bulk redrive stays one batch: each message has its span, with its result.
func TestRedriver_Many(t *testing.T) {
	w := newWorld(tracing.Config{})
	next := &many{}
	all, ok := w.tracer.Redriver(next).(interface {
		RescheduleAll(ctx context.Context, origins []envelope.Origin, messages []*message.Message) []error
	})
	require.True(t, ok)
	errs := all.RescheduleAll(t.Context(), make([]envelope.Origin, 2), []*message.Message{order(parent), order(parent)})
	require.Len(t, errs, 2)
	spans := w.spans.GetSpans()
	require.Equal(t, []string{"", "refused"}, []string{spans[0].Status.Description, spans[1].Status.Description})
	for i, m := range next.got {
		require.Contains(t, m.Metadata[envelope.KeyTraceLink], spans[i].SpanContext.SpanID().String())
		require.Equal(t, parent, m.Metadata[envelope.KeyTraceParent], "the publish stays the parent")
	}
	_, ok = w.tracer.Redriver(middleware.ReschedulerFunc(nil)).(interface {
		RescheduleAll(ctx context.Context, origins []envelope.Origin, messages []*message.Message) []error
	})
	require.False(t, ok, "what next cannot do is not promised")
}

// Without an SDK nothing is written into headers, and nothing breaks.
func TestTracer_WithoutSDK(t *testing.T) {
	tracer := tracing.New(tracing.Config{})
	_, err := tracer.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(order(""))
	require.NoError(t, err)
	m := order("")
	require.NoError(t, tracer.Publisher(nowhere{}, "amqp").Publish("orders", m))
	require.NotContains(t, m.Metadata, envelope.KeyTraceParent)
}

type nowhere struct{}

func (nowhere) Publish(string, ...*message.Message) error { return nil }
func (nowhere) Close() error                              { return nil }
