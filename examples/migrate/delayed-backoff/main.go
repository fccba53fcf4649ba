// The program of docs/migrate/delayed-backoff.md.
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
	broker, err := brokers.Open(ctx, url, brokers.WithNaming(brokers.DelayedBackoff()))
	if err != nil {
		return err
	}
	defer broker.Close()
	cfg := middleware.DelayedBackoff(3, time.Second) // MAX_RETRIES = 3; the base for messages without x-original-delay
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
	router.AddConsumerHandler("reminder", "order-reminder", broker.Subscriber(), envelope.Handle(remind))
	return router.Run(ctx)
}

type reminder struct {
	ID    string `json:"id"`
	Email string `json:"email"`
}

// remind is the handler of OrderReminderEvent.
func remind(_ context.Context, r reminder) error {
	if r.Email == "invalid" {
		return middleware.Permanent(errors.New("validation: email")) // to the dead letter exchange at once
	}
	if r.Email == "" {
		return errors.New("mail server: no answer")
	}
	log.Printf("handled %s", r.ID)
	return nil
}
