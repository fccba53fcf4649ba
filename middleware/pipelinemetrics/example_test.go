package pipelinemetrics_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/pipelinemetrics"
)

func Example() {
	metrics, err := pipelinemetrics.New(pipelinemetrics.Config{})
	if err != nil {
		panic(err)
	}
	registry := prometheus.NewRegistry() // or prometheus.DefaultRegisterer
	registry.MustRegister(metrics)
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: middleware.HoldInMemory,
		Observer:    metrics,
		DeadLetters: middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { return nil }),
		Logger:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		panic(err)
	}
	handle := pipeline.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	if _, err := handle(message.NewMessage("1", nil)); err != nil {
		panic(err)
	}
	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		if f.GetName() == "redrive_deliveries_total" {
			for _, m := range f.GetMetric() {
				fmt.Println(m.GetLabel()[3].GetValue(), m.GetCounter().GetValue())
			}
		}
	}
	// Output:
	// not_settled 0
	// success 1
}
