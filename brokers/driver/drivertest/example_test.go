package drivertest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/driver/drivertest"
	"github.com/redrive-go/redrive/brokers/portable"
)

// A broker that refuses the first message that it gets.
func Example() {
	server := drivertest.NewServer(drivertest.Config{})
	full := true
	server.With(func(h *drivertest.Hooks) {
		h.Publish = func(*driver.Outgoing) drivertest.Verdict {
			if full {
				full = false
				return drivertest.Verdict{Err: errors.New("the disk is full")}
			}
			return drivertest.Verdict{Copies: 1}
		}
	})
	cfg, err := brokers.Config{URL: "faulty://"}.Resolve(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	broker, err := portable.New(portable.Config{Config: cfg, Transport: server.Connect()})
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
	fmt.Println(broker.Publisher().Publish("orders", message.NewMessage("1", []byte("lost"))))
	fmt.Println(broker.Publisher().Publish("orders", message.NewMessage("2", []byte("stored"))))
	m := <-orders
	fmt.Println(string(m.Payload))
	m.Ack()
	// Output:
	// faulty: publish to orders: the disk is full
	// <nil>
	// stored
}
