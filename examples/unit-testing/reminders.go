// Package reminders is a small service that shows how to test a whole retry timeline: see reminders_test.go. The
// service does not depend on the broker or on the test.
package reminders

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// Topic of the reminders.
const Topic = "order.reminder"

// Reminder is a request to remind a customer of an unpaid order.
type Reminder struct {
	OrderID string `json:"order_id"`
	Phone   string `json:"phone"`
}

// ErrNoPhone means that a customer left no phone number, which no retry can change.
var ErrNoPhone = errors.New("reminder without a phone number")

// Sender sends a text message to a phone.
type Sender interface {
	Send(ctx context.Context, phone, text string) error
}

// Schedule publishes a reminder that is first delivered after delay.
func Schedule(publisher message.Publisher, r Reminder, delay time.Duration) error {
	e, err := envelope.New("shop", Topic, r, nil, envelope.Delay(delay))
	if err != nil {
		return err
	}
	return publisher.Publish(Topic, e.Message())
}

// NewRouter wires the service: three retries, based on the delay that the reminder itself was scheduled with.
func NewRouter(broker brokers.Broker, sms Sender) (*message.Router, error) {
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker,
		DeadLetters: broker,
		MaxAttempts: middleware.Retries(3),
		Backoff:     middleware.FromOriginalDelay(time.Second),
	})
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("reminders", Topic, broker.Subscriber(), envelope.Handle(
		func(ctx context.Context, r Reminder) error {
			if r.Phone == "" {
				return middleware.Permanent(ErrNoPhone)
			}
			return sms.Send(ctx, r.Phone, "Your order "+r.OrderID+" is waiting for its payment.")
		}))
	return router, nil
}
