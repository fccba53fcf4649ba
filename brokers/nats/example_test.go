package nats_test

import (
	"context"
	"fmt"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/nats" // nats://
)

func Example() {
	broker, err := brokers.Open(context.Background(), "nats://localhost:4222?group=billing&replicas=3")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close()
	// broker.Publisher() and broker.Subscriber() are for a router, the broker itself is the Rescheduler and the dead
	// letter sink of its pipeline.
}
