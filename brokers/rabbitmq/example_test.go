package rabbitmq_test

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/rabbitmq"
)

// The queues of a service on a bus can be listed without a connection, for a review or for the team that declares them
// in production.
func ExamplePlanConfig() {
	plan, err := rabbitmq.PlanConfig(brokers.Config{
		URL:    "amqp://localhost/",
		Group:  "invoice-service",
		Naming: brokers.ServiceBus("easyweek"),
		Delays: []time.Duration{time.Second, 5 * time.Second},
		Params: brokers.Params{"grid": "false"},
	}, "invoice.*")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, q := range plan.Queues {
		fmt.Println(q.Name)
	}
	for _, b := range plan.Bindings {
		fmt.Println(b.Exchange, b.Key, "->", b.To)
	}
	// Output:
	// easyweek.invoice-service
	// easyweek.invoice-service.retry.1000
	// easyweek.invoice-service.retry.5000
	// easyweek.invoice-service.failed
	// easyweek.bus invoice.* -> easyweek.invoice-service
	// easyweek.invoice-service.failed  -> easyweek.invoice-service.failed
}

// All faults of a URL are reported before anything is sent.
func ExamplePlanConfig_faults() {
	_, err := rabbitmq.PlanConfig(brokers.Config{URL: "amqp://me:secret@localhost/?crash-limit=30&delivery-limit=20"}, "orders")
	fmt.Println(err)
	// Output: rabbitmq: crash-limit 30 must be below delivery-limit 20, otherwise the broker dead-letters first
}

// The error of an unroutable publication names what is missing.
func ExampleUnroutableError() {
	var err error = &rabbitmq.UnroutableError{RoutingKey: "orders_dlq", Reason: "312 NO_ROUTE"}
	fmt.Println(err)
	// Output: rabbitmq: publish to queue "orders_dlq": no queue takes this message (312 NO_ROUTE): declare the queue, or correct the name
}
