package kafkatest

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/brokertest"
	_ "github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/integration/await"
	"github.com/redrive-go/redrive/integration/services"
)

// The suite that brokers/kafka passes on kfake also passes on a real broker.
func TestConformance(t *testing.T) {
	k := services.SharedKafka(t)
	open := func(cfg brokers.Config) (brokers.Broker, error) {
		cfg.URL = k.URL() + "?partitions=1"
		return brokers.OpenConfig(context.Background(), cfg)
	}
	// A broker that has just started takes seconds to create its internal topics for the first group.
	b, err := open(brokers.Config{Group: "first", PublishTimeout: await.Patience})
	require.NoError(t, err)
	topic := k.Topic(t)
	messages, err := b.Subscriber().Subscribe(t.Context(), topic)
	require.NoError(t, err)
	require.NoError(t, b.Publisher().Publish(topic, message.NewMessage("first", nil)))
	receive(t, messages).Ack()
	require.NoError(t, b.Close())

	brokertest.Run(t, brokertest.Harness{
		Backend: func(*testing.T) brokertest.Backend { return brokertest.Backend{Open: open} },
		Factor:  0.05,
		// many groups at once on a new broker; TestHold and BenchmarkLateness test the accuracy
		Late: 8 * time.Second,
		Watermill: &tests.Features{
			ConsumerGroups:                      true,
			GuaranteedOrder:                     true,
			GuaranteedOrderWithSingleSubscriber: true,
			Persistent:                          true,
			ForceShort:                          true,
		},
	})
}
