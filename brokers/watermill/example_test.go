package watermill_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/watermill"
	"github.com/redrive-go/redrive/envelope"
)

// Retries on a Pub/Sub that cannot delay wait in another broker, without blocking later messages, and return to the
// same subscription.
func ExampleNew() {
	ctx, logger := context.Background(), slog.New(slog.DiscardHandler)
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, watermill.Logger(logger)) // or the service's own
	delays, err := memory.New(brokers.Config{})                                    // sqlqueue in production
	if err != nil {
		fmt.Println(err)
		return
	}
	defer delays.Close()
	broker, err := watermill.New(watermill.Config{
		Publisher: pubSub, Subscriber: pubSub, Delays: delays, Server: "orders",
		Broker: brokers.Config{Group: "billing", Logger: logger},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close()

	orders, err := broker.Subscriber().Subscribe(ctx, "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := broker.Publisher().Publish("orders", message.NewMessage("1", []byte("order"))); err != nil {
		fmt.Println(err)
		return
	}
	m := <-orders
	origin, _ := envelope.OriginFrom(m.Context())
	fmt.Println(string(m.Payload), "for", origin.Consumer)

	// The handler failed. The pipeline of package middleware does this before it acks.
	if err := broker.Reschedule(ctx, *origin, m.Copy(), time.Millisecond); err != nil {
		fmt.Println(err)
		return
	}
	m.Ack()
	m = <-orders
	fmt.Println(string(m.Payload), "again")
	m.Ack()
	// Output:
	// order for billing
	// order again
}
