package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/examples/internal/demo"
	"github.com/redrive-go/redrive/middleware"
)

// Topics and consumers of the shop.
const (
	topicOrders = "orders"
	topicPaid   = "orders.paid"

	consumerCharge  = "charge"  // charges orders, and publishes that to topicPaid
	consumerLoyalty = "loyalty" // books points
)

// shop is the wired service: this file is what a user of the framework writes, the others are the application.
type shop struct {
	broker   brokers.Broker
	letters  *dlq.Letters
	router   *message.Router
	acquirer *acquirer
	ledger   *demo.Ledger
	orders   orderBook
	run      string // correlation id of everything that this run publishes
}

func open(ctx context.Context, s settings, logger *slog.Logger) (_ *shop, err error) {
	sh := &shop{
		ledger: demo.NewLedger(consumerCharge, consumerLoyalty), acquirer: newAcquirer(s.redrive), run: envelope.NewID(),
	}
	if sh.broker, err = brokers.Open(ctx, s.BrokerURL); err != nil {
		return nil, err
	}
	if sh.letters, err = dlq.Open(ctx, s.DLQURL, dlq.WithLogger(logger)); err != nil {
		return nil, errors.Join(err, sh.broker.Close())
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, sh.close())
		}
	}()

	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: demo.Scaled(sh.broker, s.Speed),
		DeadLetters: sh.letters,
		MaxAttempts: middleware.Tries(5),
		Backoff:     middleware.FromOriginalDelay(time.Second), // 1, 2, 4, 8 s
		Rules:       []middleware.Rule{middleware.MatchFunc(isInvalid, middleware.KindPermanent, "order is invalid")},
		Observer:    sh.ledger,
		Logger:      logger,
	})
	if err != nil {
		return sh, err
	}
	sh.router, err = message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(logger))
	if err != nil {
		return sh, err
	}
	sh.router.AddMiddleware(pipeline.Middleware)
	sh.router.AddHandler(consumerCharge, topicOrders, sh.subscriber(consumerCharge, s), topicPaid, sh.broker.Publisher(),
		sh.charge)
	sh.router.AddConsumerHandler(consumerLoyalty, topicPaid, sh.subscriber(consumerLoyalty, s),
		envelope.Handle(sh.bookPoints))
	return sh, nil
}

func (sh *shop) subscriber(group string, s settings) message.Subscriber {
	return sh.broker.Subscriber(brokers.WithGroup(group), brokers.WithConcurrency(s.Concurrency))
}

func (sh *shop) close() error { return errors.Join(sh.broker.Close(), sh.letters.Close()) }
