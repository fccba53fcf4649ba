package kafka_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// A message that fails goes to a retry topic of its group and is redelivered when it is due, with its key and headers.
// In a program, the pipeline of package middleware calls Reschedule.
func Example() {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1)) // an in-process Kafka
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cluster.Close()
	ctx := context.Background()
	broker, err := brokers.Open(ctx, "kafka://"+strings.Join(cluster.ListenAddrs(), ",")+"?group=billing&partitions=1")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer broker.Close()

	orders, err := broker.Subscriber().Subscribe(ctx, "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	m := message.NewMessage("order-1", []byte(`{"amount": 3}`))
	m.Metadata[envelope.KeyKafkaKey] = "customer-7"
	if err := broker.Publisher().Publish("orders", m); err != nil {
		fmt.Println(err)
		return
	}

	failed := <-orders
	origin, _ := envelope.OriginFrom(failed.Context())
	if err := broker.Reschedule(ctx, *origin, failed.Copy(), 200*time.Millisecond); err != nil {
		fmt.Println(err)
		return
	}
	failed.Ack()

	again := <-orders
	origin, _ = envelope.OriginFrom(again.Context())
	fmt.Println(again.UUID, "of", again.Metadata[envelope.KeyKafkaKey], "from", origin.Topic, origin.Position)
	again.Ack()
	// Output: order-1 of customer-7 from orders 0/0
}
