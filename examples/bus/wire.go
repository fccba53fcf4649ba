package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/memory"
	_ "github.com/redrive-go/redrive/brokers/rabbitmq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/examples/internal/demo"
	"github.com/redrive-go/redrive/middleware"
)

// service is a consumer on the bus: its events, its attempts, and its handler.
type service struct {
	name   string
	events []string // patterns
	policy middleware.Config
	handle func(context.Context, Event) error
}

// services are the two services on this bus. They are independent, and each has its own attempts and backoff.
func services() []service {
	return []service{
		{
			name:   "invoice-service",
			events: []string{"invoice.*", "system.#"},
			policy: middleware.ServiceBus(3, 1*time.Second, 5*time.Second, 60*time.Second), // T = 0, 1, 6 s, then .failed
			handle: handleInvoice,
		},
		{
			name:   "mailer",
			events: []string{"invoice.*", "user.#", "system.#"},
			policy: middleware.ServiceBus(5, 0, 1*time.Second, 5*time.Second),
			handle: (&mailer{}).handle,
		},
	}
}

// open opens the bus: one connection that both services share.
func open(ctx context.Context, url, project string) (brokers.Broker, error) {
	return brokers.Open(ctx, url, brokers.WithNaming(brokers.ServiceBus(project)))
}

// wire subscribes the services to the bus.
func wire(broker brokers.Broker, speed float64, t *transcript, logger *slog.Logger) (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(logger))
	if err != nil {
		return nil, err
	}
	for _, s := range services() {
		cfg := s.policy
		cfg.Rescheduler = demo.Scaled(broker, speed)
		cfg.DeadLetters = broker // {project}.{service}.failed
		cfg.Hooks = t.hooks(s.name)
		cfg.SystemEvents[middleware.SystemPing] = t.special(s.name, "pong")
		cfg.Debug = t.special(s.name, "a debug message, looked at only") // those that a developer has marked
		cfg.Logger = logger
		pipeline, err := middleware.New(cfg)
		if err != nil {
			return nil, err
		}
		consume := broker.Subscriber(brokers.WithGroup(s.name), brokers.WithPatterns(s.events[1:]...))
		handler := router.AddConsumerHandler(s.name, s.events[0], consume, envelope.Handle(t.watch(s.name, s.handle)))
		handler.AddMiddleware(pipeline.Middleware)
	}
	return router, nil
}

// publish sends the events, each under its own name as the routing key.
func publish(broker brokers.Broker, events []Event) error {
	publisher := broker.Publisher()
	var errs []error
	for _, event := range events {
		e, err := envelope.New("shop", event.Name, event, nil, envelope.ID(event.ID), envelope.EventNamed(event.Name))
		if err != nil {
			return err
		}
		m := e.Message()
		if event.Debug {
			m.Metadata[middleware.KeyIsDebug] = "true"
		}
		errs = append(errs, publisher.Publish(event.Name, m))
	}
	return errors.Join(errs...)
}
