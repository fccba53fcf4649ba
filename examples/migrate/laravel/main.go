// The program of docs/migrate/laravel.md.
package main

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/rabbitmq" // amqp://
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Getenv("BROKER_URL")); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string) error {
	broker, err := brokers.Open(ctx, url, brokers.WithNaming(brokers.Laravel()))
	if err != nil {
		return err
	}
	defer broker.Close()
	cfg := middleware.Laravel(5) // maxRetries = 5: five runs in all
	cfg.Backoff = middleware.Constant(time.Second)
	cfg.Hooks.OnDeadLetter = func(_ context.Context, p middleware.DeadLetterParams) error { // onDeadLetter()
		log.Printf("dead %s: %s", envelope.Identify(p.DeadLetter.Message), p.DeadLetter.Err.Message)
		return nil
	}
	cfg.Rescheduler, cfg.DeadLetters = broker, broker
	pipeline, err := middleware.New(cfg)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(slog.Default()))
	if err != nil {
		return err
	}
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("orders", "orders", broker.Subscriber(), envelope.Handle(ship))
	return router.Run(ctx)
}

type order struct {
	ID    string `json:"order_id"`
	Stock int    `json:"stock"`
}

// ship is process(message): an error is another attempt.
func ship(_ context.Context, o order) error {
	if o.Stock < 1 {
		return errors.New("no stock")
	}
	log.Printf("handled %s", o.ID)
	return nil
}
