package tracing_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/tracing"
)

// The publish and the attempt are spans of one trace, which travels in the message's headers.
func Example() {
	ctx, recorded := context.Background(), tracetest.NewSpanRecorder()
	tracer := tracing.New(tracing.Config{ // without a Provider it is the program's global one
		Provider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorded)),
	})
	broker, err := memory.New(brokers.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close()
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker, DeadLetters: broker, Observer: tracer, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	handle := pipeline.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })

	orders, err := broker.Subscriber().Subscribe(ctx, "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	publisher := tracer.Publisher(broker.Publisher(), "mem")
	if err := publisher.Publish("orders", message.NewMessage("1", nil)); err != nil {
		fmt.Println(err)
		return
	}
	m := <-orders
	if _, err := handle(m); err != nil {
		fmt.Println(err)
		return
	}
	m.Ack()
	spans := recorded.Ended()
	for _, span := range spans {
		fmt.Println(span.Name(), span.SpanContext().TraceID() == spans[0].SpanContext().TraceID())
	}
	// Output:
	// send orders true
	// process orders true
}
