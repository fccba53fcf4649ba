// Package tracingtest has the test that proves traces on a broker: one trace from the publish through a retry to the
// dead letter and its redrive, carried only by what the broker delivers.
package tracingtest

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/logbuffer"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/tracing"
)

// Broker is the broker under test.
type Broker struct {
	// Scheme is the scheme of its URL, System the expected messaging.system.
	Scheme, System string
	Publisher      message.Publisher
	Subscriber     message.Subscriber
	Rescheduler    middleware.Rescheduler
	DeadLetters    middleware.DeadLetterSink
}

// Topics that Run uses. Run subscribes to Topic; Results must exist, if the broker does not create topics.
const (
	Topic   = "orders"
	Results = "receipts"
)

// patience is how long a loaded machine may take.
const patience = 2 * time.Minute

// Run runs the test: a message is published, fails twice, is dead-lettered, redriven, and then succeeds with a separate
// message.
func Run(t *testing.T, b Broker) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(spans))
	tracer := tracing.New(tracing.Config{Provider: provider})
	var logs logbuffer.Buffer
	letters := make(chan *envelope.DeadLetter, 1)
	pipeline, err := middleware.New(middleware.Config{
		MaxAttempts: 2, Backoff: middleware.Constant(50 * time.Millisecond),
		Rescheduler: b.Rescheduler, Observer: tracer,
		Logger: slog.New(tracing.LogHandler(slog.NewJSONHandler(&logs, nil))),
		DeadLetters: middleware.Sinks{
			b.DeadLetters,
			middleware.DeadLetterFunc(func(_ context.Context, d *envelope.DeadLetter) error {
				letters <- d
				return nil
			}),
		},
	})
	require.NoError(t, err)
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	require.NoError(t, err)
	router.AddMiddleware(pipeline.Middleware, tracer.Middleware)
	publisher := tracer.Publisher(b.Publisher, b.Scheme)
	router.AddHandler("charge", Topic, b.Subscriber, Results, publisher,
		func(m *message.Message) ([]*message.Message, error) {
			slog.New(tracing.LogHandler(slog.NewJSONHandler(&logs, nil))).InfoContext(m.Context(), "in the handler")
			if a, _ := middleware.AttemptFrom(m.Context()); a.RedriveID == "" {
				return nil, errors.New("the bank is down")
			}
			return message.Messages{message.NewMessage(watermill.NewUUID(), m.Payload)}, nil
		})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	t.Cleanup(stop)

	buying, checkout := provider.Tracer("shop").Start(context.Background(), "checkout")
	e, err := envelope.New("shop", Topic, map[string]int{"n": 1}, nil)
	require.NoError(t, err)
	m := e.Message()
	m.SetContext(buying)
	require.NoError(t, publisher.Publish(Topic, m))
	checkout.End()
	require.Empty(t, m.Metadata[envelope.KeyTraceParent], "the caller's message is not changed")

	var died *envelope.DeadLetter
	select {
	case died = <-letters:
	case <-time.After(patience):
		require.FailNow(t, "no dead letter arrived", logs.String())
	}
	id := checkout.SpanContext().TraceID()
	require.Equal(t, id.String(), envelope.TraceID(died.Message.Metadata), "the dead letter shows its trace")

	operating, operator := provider.Tracer("operator").Start(context.Background(), "POST /redrives")
	again := envelope.PrepareRedrive(died.Message, envelope.Redrive{ID: "7", Count: 1})
	require.NoError(t, tracer.Redriver(b.Rescheduler).Reschedule(operating, died.Origin, again, 0))
	operator.End()

	const all = 8 // checkout, send, two attempts, the operator's, the redrive, the attempt that succeeds, its result
	complete := func() bool { return len(spans.GetSpans()) >= all }
	if !assert.Eventually(t, complete, patience, 10*time.Millisecond, "spans are missing") {
		require.FailNow(t, logs.String(), "%v", names(spans.GetSpans()))
	}
	stop()
	check(t, &b, spans.GetSpans(), id, operator.SpanContext().TraceID())
	checkLogs(t, logs.String(), id.String(), e.MessageID())
}

func names(spans tracetest.SpanStubs) []string {
	var list []string
	for i := range spans {
		list = append(list, spans[i].Name)
	}
	return list
}

func check(t *testing.T, b *Broker, spans tracetest.SpanStubs, id, operators trace.TraceID) {
	t.Helper()
	var attempts, sends, results []tracetest.SpanStub
	for i := range spans {
		switch spans[i].Name {
		case "process " + Topic:
			attempts = append(attempts, spans[i])
		case "send " + Topic:
			sends = append(sends, spans[i])
		case "send " + Results:
			results = append(results, spans[i])
		}
	}
	require.Len(t, attempts, 3, "%v", names(spans))
	require.Len(t, sends, 2)
	publish, redrive := sends[0], sends[1]
	require.Equal(t, id, publish.SpanContext.TraceID())
	require.Equal(t, trace.SpanKindProducer, publish.SpanKind)
	for _, a := range attempts {
		require.Equal(t, trace.SpanKindConsumer, a.SpanKind)
		require.Equal(t, id, a.SpanContext.TraceID(), "one trace for all")
		require.Equal(t, publish.SpanContext.SpanID(), a.Parent.SpanID(), "no delivery is the parent of another one")
		require.Equal(t, b.System, attribute(&a, "messaging.system"))
		require.Equal(t, Topic, attribute(&a, "messaging.destination.name"))
		require.NotEmpty(t, attribute(&a, "messaging.message.id"))
	}
	require.Empty(t, attempts[0].Links)
	for i, outcome := range []string{"retry", "dead_letter", "success"} {
		require.Equal(t, outcome, attribute(&attempts[i], "redrive.outcome"))
	}
	require.Equal(t, []trace.SpanID{attempts[0].SpanContext.SpanID()}, linked(&attempts[1]),
		"the retry links to the attempt that failed")
	require.Equal(t, []trace.SpanID{attempts[1].SpanContext.SpanID()}, linked(&redrive),
		"the redrive links to the attempt that died")
	require.Equal(t, operators, redrive.SpanContext.TraceID(), "the redrive is part of the operator's trace")
	require.Equal(t, "7", attribute(&redrive, "redrive.id"))
	require.Equal(t, []trace.SpanID{redrive.SpanContext.SpanID()}, linked(&attempts[2]),
		"the redriven message links to the redrive")
	require.Equal(t, "the bank is down", attempts[0].Status.Description)
	require.Equal(t, "*errors.errorString", attribute(&attempts[0], "error.type"))
	require.Equal(t, "retry scheduled", attempts[0].Events[0].Name)
	require.Equal(t, "dead letter", attempts[1].Events[0].Name)
	require.Len(t, results, 1)
	require.Equal(t, attempts[2].SpanContext.SpanID(), results[0].Parent.SpanID(),
		"the handler's messages are part of the trace")
}

func linked(s *tracetest.SpanStub) []trace.SpanID {
	var list []trace.SpanID
	for _, l := range s.Links {
		list = append(list, l.SpanContext.SpanID())
	}
	return list
}

func attribute(s *tracetest.SpanStub, key string) string {
	for _, a := range s.Attributes {
		if string(a.Key) == key {
			return a.Value.AsString()
		}
	}
	return ""
}

func checkLogs(t *testing.T, logs, traceID, messageID string) {
	t.Helper()
	for _, line := range []string{"attempt failed, retry scheduled", "message dead-lettered", "in the handler"} {
		found := false
		for text := range strings.Lines(logs) {
			if strings.Contains(text, `"msg":"`+line+`"`) {
				found = true
				require.Contains(t, text, `"trace_id":"`+traceID+`"`)
				require.Contains(t, text, `"message_id":"`+messageID+`"`)
				require.Equal(t, 1, strings.Count(text, `"message_id"`), text)
			}
		}
		require.True(t, found, "no line %q in\n%s", line, logs)
	}
}
