// Command quickstart is the program of the README's first screen: one handler that fails once, on a broker in memory.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/memory" // or brokers/rabbitmq, brokers/kafka, brokers/nats, brokers/sqlqueue
	"github.com/redrive-go/redrive/middleware"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	broker, err := brokers.Open(ctx, "mem://") // or amqp://guest:guest@localhost/
	if err != nil {
		return err
	}
	pipeline, err := middleware.New(middleware.Config{Rescheduler: broker, DeadLetters: broker})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddMiddleware(pipeline.Middleware)
	router.AddConsumerHandler("mailer", "orders", broker.Subscriber(), func(m *message.Message) error {
		attempt, _ := middleware.AttemptFrom(m.Context())
		fmt.Printf("%s: %s\n", m.Payload, attempt)
		if attempt.Number == 1 {
			return errors.New("mail server: connection refused") // retried after 1 s; nothing behind it waits
		}
		stop() // this program ends here
		return nil
	})

	go func() {
		<-router.Running() // the queue of the consumer exists
		order := message.NewMessage(watermill.NewUUID(), []byte("order 4711"))
		if err := broker.Publisher().Publish("orders", order); err != nil {
			log.Print(err)
		}
	}()
	return errors.Join(router.Run(ctx), broker.Close()) // runs until ctx ends
}
