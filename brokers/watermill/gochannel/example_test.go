package gochannel_test

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/watermill/gochannel" // gochannel://
)

// Two brokers with the same name share their topics, like two services on one server.
func Example() {
	ctx := context.Background()
	orders, err := brokers.Open(ctx, "gochannel://shop?group=orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer orders.Close()
	billing, err := brokers.Open(ctx, "gochannel://shop?group=billing")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer billing.Close()

	if err := orders.Publisher().Publish("orders", message.NewMessage("1", []byte("order"))); err != nil {
		fmt.Println(err)
		return
	}
	messages, err := billing.Subscriber().Subscribe(ctx, "orders") // a new group receives earlier messages
	if err != nil {
		fmt.Println(err)
		return
	}
	m := <-messages
	fmt.Println(string(m.Payload))
	m.Ack()
	// Output: order
}
