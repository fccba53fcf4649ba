// Command plain-watermill adds the pipeline to an existing Watermill program: its router, its Pub/Sub (here gochannel,
// but it could be any) and its handlers are not changed. Only the lines between the two rules are new.
//
//	go run ./examples/plain-watermill
//
// Such a pub/sub cannot delay a message, so a failed message waits in memory, unacked, and is run
// again in this process. Where messages must step aside for minutes, open a broker of package brokers instead.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	pubsub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	defer func() { _ = pubsub.Close() }()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}

	// ---- new ----------------------------------------------------------------------------------------------------
	pipeline, err := middleware.New(middleware.Config{
		Rescheduler: middleware.HoldInMemory,
		DeadLetters: middleware.DeadLetterFunc(func(_ context.Context, d *envelope.DeadLetter) error {
			return pubsub.Publish("orders.dead", d.Message.Copy())
		}),
		Backoff: middleware.FromOriginalDelay(50 * time.Millisecond),
		Logger:  slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	router.AddMiddleware(pipeline.Middleware)
	// -------------------------------------------------------------------------------------------------------------

	const orders = 3
	settled := make(chan struct{}, orders)
	router.AddConsumerHandler("orders", "orders", pubsub, func(m *message.Message) error {
		attempt, _ := middleware.AttemptFrom(m.Context())
		fmt.Printf("%s: %s\n", m.Payload, attempt)
		switch {
		case string(m.Payload) == "no address":
			return middleware.Permanent(errors.New("an order needs an address"))
		case string(m.Payload) == "bank is down" && attempt.Number < 3:
			return errors.New("503 service unavailable")
		}
		settled <- struct{}{}
		return nil
	})
	router.AddConsumerHandler("dead", "orders.dead", pubsub, func(m *message.Message) error {
		fmt.Printf("dead letter %q: %s, %s\n", m.Payload,
			m.Metadata[envelope.KeyDeadLetterReason], m.Metadata[envelope.KeyErrorMessage])
		settled <- struct{}{}
		return nil
	})

	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	<-router.Running()
	for _, order := range []string{"fine", "no address", "bank is down"} {
		if err := pubsub.Publish("orders", message.NewMessage(watermill.NewUUID(), []byte(order))); err != nil {
			return err
		}
	}
	for range orders {
		select {
		case <-settled:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	cancel()
	return <-ended
}
