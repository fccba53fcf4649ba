// The program of docs/migrate/service-bus.md.
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
	broker, err := brokers.Open(ctx, url, brokers.WithNaming(brokers.ServiceBus("easyweek")))
	if err != nil {
		return err
	}
	defer broker.Close()
	cfg := middleware.ServiceBus(3, 1*time.Second, 5*time.Second, 60*time.Second) // tries(3), backoff([1, 5, 60])
	cfg.Hooks.OnRetry = func(_ context.Context, p middleware.RetryParams) error { // catch(fn)
		log.Printf("retry %s: %v", envelope.Identify(p.Message), p.Decision.Err)
		return nil
	}
	cfg.Hooks.OnDeadLetter = func(_ context.Context, p middleware.DeadLetterParams) error { // failed(fn)
		log.Printf("dead %s: %s", envelope.Identify(p.DeadLetter.Message), p.DeadLetter.Err.Message)
		return nil
	}
	cfg.SystemEvents[middleware.SystemPing] = func(*message.Message) error { // bound to the queue by the broker
		log.Print("pong")
		return nil
	}
	cfg.Debug = func(m *message.Message) error { // debugCallback: messages with system.is_debug
		log.Printf("debug %s", m.Payload)
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
	events := middleware.Events{ // events('invoice.*', 'user.#')
		"invoice.*": envelope.Handle(invoice),
		"user.#":    envelope.Handle(user),
	}
	names := events.Names()
	service := os.Getenv("AMQP_MICROSERVICE_NAME") // its queue is easyweek.{service}
	consume := broker.Subscriber(brokers.WithGroup(service), brokers.WithPatterns(names[1:]...))
	router.AddConsumerHandler("service", names[0], consume, events.Handle)
	return router.Run(ctx)
}

type document struct {
	ID       string `json:"id"`
	Customer string `json:"customer"`
}

func invoice(_ context.Context, d document) error {
	if d.Customer == "" {
		return errors.New("no customer")
	}
	log.Printf("handled %s", d.ID)
	return nil
}

func user(_ context.Context, d document) error {
	log.Printf("handled %s", d.ID)
	return nil
}
