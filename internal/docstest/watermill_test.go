package docstest

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/watermill"
)

// docs/brokers/watermill.md.
func anyPubSub(publisher message.Publisher, subscriberFor func(group string) message.Subscriber,
	queue brokers.Broker,
) (brokers.Broker, error) {
	broker, err := watermill.New(watermill.Config{
		Publisher:     publisher,
		NewSubscriber: func(group string) (message.Subscriber, error) { return subscriberFor(group), nil },
		Delays:        queue,
		Server:        "orders", // names the Pub/Sub in Delays, where others may keep messages too
	})
	return broker, err
}

func watermillAMQP(ctx context.Context) (brokers.Broker, error) {
	broker, err := brokers.Open(ctx, "watermill+amqp://guest:guest@localhost:5672/")
	return broker, err
}

func moveToNative(ctx context.Context, old, native brokers.Broker) error {
	err := brokers.Move(ctx, brokers.MoveConfig{From: old, To: native, Topic: "orders", Consumer: "billing"})
	return err
}

func TestDocs_AnyPubSub(t *testing.T) {
	pubSub, err := memory.New(brokers.Config{})
	require.NoError(t, err)
	queue, err := memory.New(brokers.Config{})
	require.NoError(t, err)
	broker, err := anyPubSub(pubSub.Publisher(), func(group string) message.Subscriber {
		return pubSub.Subscriber(brokers.WithGroup(group))
	}, queue)
	require.NoError(t, err)
	require.Positive(t, broker.Capabilities().MaxDelay)
	require.NoError(t, broker.Close())
	require.NoError(t, queue.Close())
	require.NoError(t, pubSub.Close())
	_, _ = watermillAMQP, moveToNative // compiled only: they need servers
}
