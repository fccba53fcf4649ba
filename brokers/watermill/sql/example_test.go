package sql_test

import (
	"context"
	"fmt"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/watermill/sql"
)

// A service that uses watermill-sql keeps its tables. Retries wait in another broker.
func ExampleNew() {
	ctx := context.Background()
	delays, err := memory.New(brokers.Config{}) // sqlqueue in production
	if err != nil {
		fmt.Println(err)
		return
	}
	defer delays.Close()
	broker, err := sql.New(ctx, sql.Config{
		Broker: brokers.Config{URL: "watermill+postgres://app@localhost/shop", Group: "billing"},
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
