package memory_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
)

// BenchmarkPublishConsume measures one message from Publish to Ack, compared with Watermill's gochannel, which has no
// groups and no delays, and does not store messages without a subscriber.
func BenchmarkPublishConsume(b *testing.B) {
	b.Run("memory", func(b *testing.B) {
		broker, err := memory.New(brokers.Config{})
		require.NoError(b, err)
		publishConsume(b, broker.Publisher(), broker.Subscriber())
		require.NoError(b, broker.Close())
	})
	b.Run("gochannel", func(b *testing.B) {
		pubsub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
		publishConsume(b, pubsub, pubsub)
		require.NoError(b, pubsub.Close())
	})
}

func publishConsume(b *testing.B, pub message.Publisher, sub message.Subscriber) {
	b.Helper()
	in, err := sub.Subscribe(b.Context(), "orders")
	require.NoError(b, err)
	m := message.NewMessage("1", []byte(`{"order": 1}`))
	m.Metadata.Set("correlation_id", "abc-123")
	b.ReportAllocs()
	for b.Loop() {
		if err := pub.Publish("orders", m); err != nil {
			b.Fatal(err)
		}
		(<-in).Ack()
	}
}
