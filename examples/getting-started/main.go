// Command getting-started is the service of docs/getting-started.md: it confirms orders by mail, and stores those that
// cannot be confirmed for a person to review.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite" // the SQL driver of both files

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/sqlqueue"
	"github.com/redrive-go/redrive/dlq"
	_ "github.com/redrive-go/redrive/dlq/sqlstore"
	"github.com/redrive-go/redrive/middleware"
)

// Order is the payload of a message.
type Order struct {
	ID    string `json:"id"`
	Email string `json:"email"`
}

// Mailer sends a confirmation.
type Mailer func(ctx context.Context, to, text string) error

var errNoAddress = errors.New("order has no e-mail address")

// NewRouter is the service: one handler, and the pipeline that decides what happens when it fails.
func NewRouter(broker brokers.Broker, letters middleware.DeadLetterSink, send Mailer) (*message.Router, error) {
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: broker,
		DeadLetters: letters,
		Rules:       []middleware.Rule{middleware.MatchError(errNoAddress, middleware.KindPermanent, "no address")},
	})
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("mailer", "orders", broker.Subscriber(), func(m *message.Message) error {
		var order Order
		if err := json.Unmarshal(m.Payload, &order); err != nil {
			return middleware.Permanent(err) // a retry would not help
		}
		if order.Email == "" {
			return errNoAddress
		}
		return send(m.Context(), order.Email, "We have your order "+order.ID) // retried: 1, 2 and 4 s later
	})
	return router, nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	broker, err := brokers.Open(ctx, "sqlite:queue.db") // a server later: amqp://, kafka://, postgres://
	if err != nil {
		return err
	}
	letters, err := dlq.Open(ctx, "sqlite:dead-letters.db")
	if err != nil {
		return errors.Join(err, broker.Close())
	}
	router, err := NewRouter(broker, letters, func(_ context.Context, to, text string) error {
		fmt.Printf("to %s: %s\n", to, text)
		return nil
	})
	if err != nil {
		return errors.Join(err, letters.Close(), broker.Close())
	}
	go func() { // what an HTTP handler would do
		<-router.Running() // the queue of the consumer exists
		for _, order := range os.Args[1:] {
			m := message.NewMessage(watermill.NewUUID(), []byte(order))
			if err := broker.Publisher().Publish("orders", m); err != nil {
				log.Print(err)
			}
		}
	}()
	return errors.Join(router.Run(ctx), letters.Close(), broker.Close()) // until Ctrl-C
}
