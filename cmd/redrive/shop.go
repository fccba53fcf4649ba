package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/live"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// Topics of the demo.
const (
	orderTopic     = "orders"
	shippingTopic  = "shipping"
	shippingErrors = "shipping_error"
)

// shop is the traffic of the demo: a handler of ours charges orders, and a service that does not know us ships them.
type shop struct {
	broker *memory.Broker
	router *message.Router

	ordered, paid, retried, shipped atomic.Int64
}

type order struct {
	Number   int    `json:"number"`
	Customer string `json:"customer"`
	Total    int    `json:"total_cents"`
	Card     string `json:"card"`
}

func newOrder(number int) order {
	return order{number, fmt.Sprintf("customer-%d", number%97), 500 + number%90*100, "4111"}
}

// bankDown simulates an outage that an operator can watch, and redrive after.
func bankDown(now time.Time) bool { return now.Second() < 20 }

func newShop(
	broker *memory.Broker, letters *dlq.Letters, observer middleware.Observer, monitor *live.Monitor, logger *slog.Logger,
) (*shop, error) {
	s := &shop{broker: broker}
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker, DeadLetters: letters, Observer: middleware.Observers{observer, monitor},
		MaxAttempts: middleware.Retries(2), Backoff: middleware.Steps(200*time.Millisecond, time.Second),
		Logger: slog.New(slog.DiscardHandler), // it would report the failures, which are intended here
	})
	if err != nil {
		return nil, err
	}
	s.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: 5 * time.Second}, watermill.NewSlogLogger(logger))
	if err != nil {
		return nil, err
	}
	s.router.AddMiddleware(pipeline.Middleware)
	s.router.AddConsumerHandler("charge", orderTopic, monitor.Subscriber(broker.Subscriber()), s.charge)
	return s, nil
}

// run takes orders until ctx ends.
func (s *shop) run(ctx context.Context, speed float64) error {
	shipping, err := s.broker.Subscriber().Subscribe(ctx, shippingTopic)
	if err != nil {
		return err
	}
	routed := make(chan error, 1)
	go func() { routed <- s.router.Run(ctx) }()
	shipped := make(chan struct{})
	go func() {
		defer close(shipped)
		s.ship(shipping)
	}()
	defer func() { <-shipped }()
	ticker := time.NewTicker(time.Duration(float64(time.Second) / speed))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return <-routed
		case err := <-routed:
			return err
		case <-ticker.C:
		}
		if err := s.order(int(s.ordered.Add(1))); err != nil {
			return ended(ctx, err)
		}
	}
}

// liveOrders is below the numbers of the demo's live orders; those of its history are smaller.
const liveOrders = 1000

// order publishes an order; some have faults that no retry fixes.
func (s *shop) order(number int) error {
	o := newOrder(number)
	o.Number += liveOrders
	switch {
	case number%37 == 0:
		o.Card = ""
	case number%53 == 0:
		o.Total = -1
	}
	e, err := envelope.New("shop", orderTopic, o, nil, envelope.EventNamed("order.placed"))
	if err != nil {
		return err
	}
	m := e.Message()
	if number%101 == 0 {
		m.Payload = m.Payload[:len(m.Payload)/2] // a producer's connection broke
	}
	return s.broker.Publisher().Publish(orderTopic, m)
}

var errBank = errors.New("bank: connection refused")

// charge is the handler: it fails like real handlers.
func (s *shop) charge(m *message.Message) error {
	if attempt, ok := middleware.AttemptFrom(m.Context()); ok && attempt.Number > 1 {
		s.retried.Add(1)
	}
	var o order
	if err := json.Unmarshal(m.Payload, &o); err != nil {
		return middleware.Permanent(fmt.Errorf("order cannot be read: %w", err))
	}
	switch {
	case o.Total < 0:
		return middleware.Permanent(fmt.Errorf("order %d: the total is negative", o.Number))
	case o.Card == "":
		return middleware.Permanent(fmt.Errorf("order %d: %s has no card", o.Number, o.Customer))
	case bankDown(time.Now()) && rand.N(3) > 0: //nolint:gosec // a demo
		return fmt.Errorf("order %d: %w", o.Number, errBank)
	}
	s.paid.Add(1)
	parcel := message.NewMessage(watermill.NewUUID(), m.Payload)
	return s.broker.Publisher().Publish(shippingTopic, parcel)
}

// ship is a service in another language: it moves failures to its error queue, with its own headers.
func (s *shop) ship(parcels <-chan *message.Message) {
	for m := range parcels {
		redriven := m.Metadata[envelope.KeyRedriveID] != ""
		if n := s.shipped.Add(1); n%29 == 0 && !redriven {
			failed := message.NewMessage(m.UUID, m.Payload)
			failed.Metadata = message.Metadata{
				"MT-Reason": "fault", "MT-Fault-InputAddress": "rabbitmq://demo/" + shippingTopic,
				"MT-Fault-ExceptionType": "Shipping.NoCarrierException", "MT-Fault-Message": "No carrier serves this address",
				"MT-Fault-Timestamp": time.Now().UTC().Format(time.RFC3339Nano), "MT-Fault-ConsumerType": "Shipping.ParcelConsumer",
			}
			if s.broker.Publisher().Publish(shippingErrors, failed) != nil {
				m.Nack()
				continue
			}
		}
		m.Ack()
	}
}

// The demo begins with a week of history.
const (
	historyDays = 7
	outage      = 150 // dead letters of one bad evening, more than one person may redrive alone
	demoAlone   = 100
)

// history fills an empty store with a week of a shop, and leaves two runs to look at: one that stops, because its
// orders die again, and one that waits for approval.
func history(ctx context.Context, letters *dlq.Letters, runner *redrive.Runner, now time.Time) error {
	stats, err := letters.Store().Stats(ctx, dlq.StatsQuery{})
	if err != nil || stats.Counts != (driver.Counts{}) {
		return err // an earlier demo's store, which was kept
	}
	put := func(at time.Time, o order, why string, reason envelope.Reason) error {
		payload, err := json.Marshal(o)
		if err != nil {
			return err
		}
		m := message.NewMessage(fmt.Sprintf("history-%d", o.Number), payload)
		m.Metadata[envelope.KeyMessageID] = m.UUID
		_, err = letters.Store().Put(ctx, dlq.NewEntry(&envelope.DeadLetter{ //nolint:contextcheck // pure; the message has a separate context
			Message: m, Reason: reason, Err: envelope.Error{Message: why}, Class: "*errors.errorString", Handler: "charge",
			Origin:   envelope.Origin{Broker: "mem", Topic: orderTopic, Consumer: brokers.DefaultGroup},
			Attempts: 3, At: at,
		}))
		return err
	}
	n := 0
	for hour := historyDays * 24; hour > 0; hour-- {
		at := now.Add(-time.Duration(hour) * time.Hour)
		for range hour % 3 {
			n++
			o := newOrder(n)
			o.Card = ""
			err := put(at, o, fmt.Sprintf("order %d: %s has no card", n, o.Customer), envelope.ReasonPermanent)
			if err != nil {
				return err
			}
		}
	}
	for range outage {
		n++
		at := now.Add(-26*time.Hour + time.Duration(n%40)*time.Minute)
		if err := put(at, newOrder(n), fmt.Sprintf("order %d: %v", n, errBank), envelope.ReasonExhausted); err != nil {
			return err
		}
	}
	for _, spec := range []redrive.Spec{
		{ID: "without-a-card", Filter: dlq.Filter{ErrorText: "has no card"}, Limit: 60, Canary: []int{1, 20}},
		{ID: "last-evening", Filter: dlq.Filter{ErrorText: "bank"}, Rate: 20, Canary: []int{1, 10}},
	} {
		if _, err := runner.StartRun(ctx, spec, dlq.By{Actor: "ben", Note: "an example of the demo"}); err != nil {
			return err
		}
	}
	return nil
}
