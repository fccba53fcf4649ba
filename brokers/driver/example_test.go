package driver_test

import (
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/brokers/driver"
)

// A broker that can wait for 1, 5 or 30 seconds lets a message wait several times.
func ExampleSteps_Pick() {
	steps := driver.NewSteps(30*time.Second, time.Second, 5*time.Second)
	for rest := 37 * time.Second; rest > 0; {
		var step time.Duration
		step, rest = steps.Pick(rest, 100*time.Millisecond)
		fmt.Printf("wait for %s, %s are left\n", step, rest)
	}
	// Output:
	// wait for 30s, 7s are left
	// wait for 5s, 2s are left
	// wait for 1s, 1s are left
	// wait for 1s, 0s are left
}

// What a transport stores: the headers that no broker made, and those that the engine adds.
func ExampleOutgoing_Headers() {
	m := message.NewMessage("1", nil)
	m.Metadata.Set("tenant", "acme")
	m.Metadata.Set("x-death", "made by RabbitMQ")
	o := driver.Outgoing{Message: m, Extra: []driver.Header{{Key: "x-stage", Value: "f1"}}}
	for key, value := range o.Headers() {
		fmt.Println(key, value)
	}
	// Output:
	// tenant acme
	// x-stage f1
}
