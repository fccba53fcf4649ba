package docstest

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

func Example_plan() {
	plan, err := rabbitmq.PlanConfig(brokers.Config{
		URL:    "amqp://localhost/?grid=false", // no queues for delays without a name
		Group:  "billing",
		Delays: []time.Duration{time.Second, 5 * time.Second},
	}, "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(plan) // broker.(*rabbitmq.Broker).Apply declares it, Check compares it with what is there
	// Output:
	// exchange redrive  direct
	// queue    orders.billing  x-dead-letter-exchange=  x-dead-letter-routing-key=orders.billing_dlq  x-dead-letter-strategy=at-least-once  x-delivery-limit=1000000  x-overflow=reject-publish  x-queue-type=quorum
	// queue    orders.billing_retry.1000  x-dead-letter-exchange=  x-dead-letter-routing-key=orders.billing  x-dead-letter-strategy=at-least-once  x-message-ttl=1000  x-overflow=reject-publish  x-queue-type=quorum
	// queue    orders.billing_retry.5000  x-dead-letter-exchange=  x-dead-letter-routing-key=orders.billing  x-dead-letter-strategy=at-least-once  x-message-ttl=5000  x-overflow=reject-publish  x-queue-type=quorum
	// queue    orders.billing_dlq  x-delivery-limit=1000000  x-queue-type=quorum
	// binding  redrive --orders--> orders.billing
}
