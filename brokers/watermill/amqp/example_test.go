package amqp_test

import (
	"context"
	"fmt"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/watermill/amqp"
)

// A service that uses watermill-amqp keeps its exchanges and queues. Retries wait in another broker.
func ExampleNew() {
	ctx := context.Background()
	delays, err := memory.New(brokers.Config{}) // sqlqueue in production
	if err != nil {
		fmt.Println(err)
		return
	}
	defer delays.Close()
	broker, err := amqp.New(ctx, amqp.Config{
		Broker: brokers.Config{URL: "watermill+amqp://guest:guest@localhost:5672/", Group: "billing"},
		Delays: delays,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close()
	// broker.Publisher() and broker.Subscriber() are for the service's router, the broker itself is the Rescheduler and
	// the dead letter sink of its pipeline.
}
