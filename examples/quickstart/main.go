// Command quickstart is the program of the README's first screen: one handler that fails once, on a broker in memory.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/middleware"
)

func main() {
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Second)
	defer stop()
	broker := must(brokers.Open(ctx, "mem://")) // or amqp://guest:guest@localhost/
	pipeline := must(middleware.New(middleware.Config{Rescheduler: broker, DeadLetters: broker}))

	router := must(message.NewRouter(message.RouterConfig{}, watermill.NopLogger{}))
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("mailer", "orders", broker.Subscriber(), func(m *message.Message) error {
		attempt, _ := middleware.AttemptFrom(m.Context())
		fmt.Printf("%s: %s\n", m.Payload, attempt)
		if attempt.Number == 1 {
			return errors.New("mail server: connection refused") // retried after 1 s, out of everybody's way
		}
		return nil
	})

	must(0, broker.Publisher().Publish("orders", message.NewMessage(watermill.NewUUID(), []byte("order 4711"))))
	must(0, router.Run(ctx)) // until ctx ends
	must(0, broker.Close())
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
