package live_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq/live"
	"github.com/redrive-go/redrive/middleware"
)

// A Monitor observes the pipeline and wraps the subscriber. The dashboard shows its reports in the store.
func Example() {
	broker, err := memory.New(brokers.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close()
	logger := slog.New(slog.DiscardHandler)
	monitor, err := live.New(live.Config{Service: "billing", Store: &answers{}, Logger: logger}) // letters.Store()
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { _ = monitor.Run(ctx) }()
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker, DeadLetters: broker, Observer: monitor, Logger: logger,
		Backoff: middleware.Constant(time.Hour),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	charge := pipeline.Middleware(func(*message.Message) ([]*message.Message, error) {
		return nil, errors.New("the bank does not answer")
	})

	orders, err := monitor.Subscriber(broker.Subscriber()).Subscribe(ctx, "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := broker.Publisher().Publish("orders", message.NewMessage("1", nil)); err != nil {
		fmt.Println(err)
		return
	}
	m := <-orders
	if _, err := charge(m); err != nil {
		fmt.Println(err)
		return
	}
	m.Ack()
	report := monitor.Report(time.Now())
	for _, queue := range report.Queues {
		fmt.Println(queue.Topic, "handling", queue.Handling, "waiting", queue.Waiting)
	}
	// Output: orders handling 0 waiting 1
}
