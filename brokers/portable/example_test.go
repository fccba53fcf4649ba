package portable_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver/drivertest"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/portable"
	"github.com/redrive-go/redrive/envelope"
)

// A transport that cannot delay lets messages wait in another broker.
func ExampleNew() {
	delays, err := memory.New(brokers.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer delays.Close()
	server := drivertest.NewServer(drivertest.Config{Capabilities: brokers.Capabilities{MaxDelay: -1}}) // your own
	cfg, err := brokers.Config{URL: "faulty://"}.Resolve(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	broker, err := portable.New(portable.Config{Config: cfg, Transport: server.Connect(), Delays: delays})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close()

	orders, err := broker.Subscriber().Subscribe(context.Background(), "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	m := message.NewMessage("1", []byte("remind"))
	envelope.SetDelay(m, 20*time.Millisecond)
	if err := broker.Publisher().Publish("orders", m); err != nil {
		fmt.Println(err)
		return
	}
	due := <-orders
	fmt.Println(string(due.Payload))
	due.Ack()
	// Output: remind
}
