package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/examples/internal/demo"
	"github.com/redrive-go/redrive/middleware"
)

const group = "payroll"

// topics are the topics that the service consumes.
var topics = []string{"employee-create", "employee-update", "employee-delete"}

// service is the wired consumer: this file is what a user of the framework writes.
type service struct {
	broker   brokers.Broker
	letters  *dlq.Letters
	router   *message.Router
	registry *registry
	ledger   *demo.Ledger
	logger   *slog.Logger
	run      string // correlation id of everything that this run publishes
}

func open(ctx context.Context, s settings, logger *slog.Logger) (_ *service, err error) {
	sv := &service{registry: newRegistry(), ledger: demo.NewLedger(topics...), logger: logger, run: envelope.NewID()}
	if sv.broker, err = brokers.Open(ctx, s.BrokerURL, brokers.WithNaming(brokers.StoreOnly())); err != nil {
		return nil, err
	}
	sv.letters, err = dlq.Open(ctx, s.DLQURL, dlq.WithLogger(logger), dlq.WithSource(sourceOf))
	if err != nil {
		return nil, errors.Join(err, sv.broker.Close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, sv.close())
		}
	}()

	cfg := middleware.StoreOnly() // technical errors are retried, all others are stored at once
	cfg.Rescheduler = demo.Scaled(sv.broker, s.Speed)
	cfg.DeadLetters = sv.letters
	cfg.Observer = sv.ledger
	cfg.Logger = logger
	pipeline, err := middleware.New(cfg)
	if err != nil {
		return sv, err
	}
	sv.router, err = message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(logger))
	if err != nil {
		return sv, err
	}
	sv.router.AddMiddleware(pipeline.Middleware)
	consume := sv.broker.Subscriber(brokers.WithGroup(group), brokers.WithConcurrency(s.Concurrency))
	for _, topic := range topics {
		sv.router.AddConsumerHandler(topic, topic, consume, envelope.Handle(sv.take))
	}
	return sv, nil
}

// take is the handler: it returns an error, and the pipeline decides what to do about it.
func (sv *service) take(ctx context.Context, e Employee) error {
	if err := e.validate(); err != nil {
		return err
	}
	return sv.registry.save(ctx, e)
}

// sourceOf returns source_table and source_id of a dead letter, if the event can be read.
func sourceOf(e envelope.Envelope) (table, id string) {
	employee, err := envelope.Data[struct {
		ID string `json:"id"`
	}](e)
	if err != nil {
		return "", ""
	}
	return "employees", employee.ID
}

func (sv *service) close() error { return errors.Join(sv.broker.Close(), sv.letters.Close()) }
