package pipelinestatsd_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
	"github.com/redrive-go/redrive/middleware/pipelinestatsd"
)

// printer replaces the client of datadog-go that a program has: statsd.New("127.0.0.1:8125").
type printer struct{}

func (printer) Incr(name string, tags []string, _ float64) error {
	fmt.Println(name, strings.Join(tags, " "))
	return nil
}
func (printer) Histogram(string, float64, []string, float64) error    { return nil }
func (printer) Timing(string, time.Duration, []string, float64) error { return nil }

func Example() {
	observer := pipelinestatsd.New(pipelinestatsd.Config{Client: printer{}, Service: "billing"})
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: middleware.HoldInMemory,
		Observer:    observer,
		DeadLetters: middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error { return nil }),
		Logger:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	handle := pipeline.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })
	if _, err := handle(message.NewMessage("1", nil)); err != nil {
		fmt.Println(err)
	}
	// Output: event_started_count nano_service_name:billing event_name: retry:first
}
