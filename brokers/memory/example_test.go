package memory_test

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/envelope"
)

func ExampleNew() {
	broker, err := memory.New(brokers.Config{Group: "billing"})
	if err != nil {
		fmt.Println(err)
		return
	}
	orders, err := broker.Subscriber().Subscribe(context.Background(), "orders")
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

	// The handler failed: reschedule the message for this consumer in a minute, before it is acked.
	if err := broker.Reschedule(context.Background(), *origin, m.Copy(), time.Minute); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%+v\n", broker.Depth("orders", "billing"))
	m.Ack()
	fmt.Println(broker.Close())
	// Output:
	// order for billing
	// {Ready:0 Waiting:1 InFlight:1}
	// <nil>
}

func ExampleBroker_Peek() {
	broker, err := memory.New(brokers.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = broker.DeadLetter(context.Background(), &envelope.DeadLetter{
		Message: message.NewMessage("1", []byte("order")),
		Reason:  envelope.ReasonPermanent,
		Origin:  envelope.Origin{Topic: "orders"},
	})
	fmt.Println(err)
	for _, m := range broker.Peek("orders_dlq", "") {
		fmt.Println(m.UUID, string(m.Payload))
	}
	fmt.Println(broker.Close())
	// Output:
	// <nil>
	// 1 order
	// <nil>
}

func ExampleBroker_Waiting() {
	broker, err := memory.New(brokers.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	reminder := message.NewMessage("1", []byte("remind"))
	envelope.SetDelay(reminder, 10*time.Minute)
	fmt.Println(broker.Publisher().Publish("reminders", reminder))
	for _, w := range broker.Waiting("reminders", "") {
		fmt.Println(string(w.Message.Payload), "in", time.Until(w.Due).Round(time.Minute))
	}
	fmt.Println(broker.Close())
	// Output:
	// <nil>
	// remind in 10m0s
	// <nil>
}

func ExampleBroker_Connect() {
	first, err := memory.New(brokers.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	second, err := first.Connect(func(c *brokers.Config) { c.Group = "mail" }) // another service on the same queues
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(first.Publisher().Publish("orders", message.NewMessage("1", []byte("order"))), first.Close())

	orders, err := second.Subscriber().Subscribe(context.Background(), "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	m := <-orders
	m.Ack()
	fmt.Println(string(m.Payload), second.Close())
	// Output:
	// <nil> <nil>
	// order <nil>
}
