package idempotency_test

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/middleware/idempotency"
)

// A message that is delivered twice charges the customer once.
func Example() {
	guard, err := idempotency.New(idempotency.Config{
		Store:    idempotency.NewMemory(), // sqlstore in production
		Consumer: "billing",               // the router's handler name by default
	})
	if err != nil {
		panic(err)
	}
	charge := guard.Middleware(func(m *message.Message) ([]*message.Message, error) {
		fmt.Println("charged", m.UUID)
		return nil, nil
	})

	for range 2 {
		_, err := charge(message.NewMessage("order-1", nil))
		fmt.Println("error:", err)
	}
	// Output:
	// charged order-1
	// error: <nil>
	// error: <nil>
}
