package kafka_test

import (
	"context"
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/stretchr/testify/require"
)

// Services can move to this driver one by one: it reads messages of watermill-kafka's publisher correctly, and
// watermill-kafka's subscriber reads those that it publishes.
func TestInterop_WithWatermillKafka(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	b := open(t, c)

	t.Run("we read its publisher's messages", func(t *testing.T) {
		t.Parallel()
		topic := name("from-watermill")
		messages := subscribe(t, b, topic) // creates the topic
		publisher, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{
			Brokers: c.ListenAddrs(), Marshaler: wmkafka.DefaultMarshaler{},
		}, watermill.NopLogger{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, publisher.Close()) })
		sent := newMessage("m-1", "payload")
		sent.Metadata["tenant"] = "acme"
		require.NoError(t, publisher.Publish(topic, sent))

		got := receive(t, messages)
		require.True(t, sent.Equals(got), "%v is not %v", got, sent)
		got.Ack()
	})

	t.Run("its subscriber reads our messages", func(t *testing.T) {
		t.Parallel()
		topic := name("to-watermill")
		sent := newMessage("m-2", "payload")
		sent.Metadata["tenant"] = "acme"
		require.NoError(t, b.Publisher().Publish(topic, sent))

		cfg := wmkafka.DefaultSaramaSubscriberConfig()
		cfg.Consumer.Offsets.Initial = sarama.OffsetOldest
		subscriber, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
			Brokers: c.ListenAddrs(), Unmarshaler: wmkafka.DefaultMarshaler{}, OverwriteSaramaConfig: cfg,
			ConsumerGroup: "watermill",
		}, watermill.NopLogger{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, subscriber.Close()) })
		messages, err := subscriber.Subscribe(context.Background(), topic)
		require.NoError(t, err)
		got := receive(t, messages)
		require.Equal(t, sent.UUID, got.UUID)
		require.Equal(t, sent.Payload, got.Payload)
		require.Equal(t, "acme", got.Metadata["tenant"])
		got.Ack()
	})
}
