package sqlqueue_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
)

// The count has one limit for all queues together, so its cost does not grow with the number of waiting messages.
func TestDepths_AreBounded(t *testing.T) {
	b := openURL(t, fileURL(t, ""))
	for _, topic := range []string{"orders", "mails"} {
		for range 3 {
			m := message.NewMessage("", nil)
			envelope.SetDelay(m, time.Hour)
			require.NoError(t, b.Publisher().Publish(topic, m))
		}
	}
	counted := func(topic string, delayed, ready int64) []brokers.Depth {
		return []brokers.Depth{
			{Topic: topic, Kind: brokers.DepthDelayed, Messages: delayed},
			{Topic: topic, Kind: brokers.DepthRetry},
			{Topic: topic, Kind: brokers.DepthReady, Messages: ready},
		}
	}
	delayed := func(topic string, n int64) []brokers.Depth { return counted(topic, n, 0) }
	require.Equal(t, append(delayed("orders", 3), delayed("mails", 3)...), b.DepthsUpTo(t, 100))
	require.Equal(t, append(delayed("orders", 3), delayed("mails", 1)...), b.DepthsUpTo(t, 4))
	require.Equal(t, delayed("orders", 3), b.DepthsUpTo(t, 3))
	for range 5 {
		require.NoError(t, b.Publisher().Publish("mails", message.NewMessage("", nil)))
	}
	require.Equal(t, append(delayed("orders", 3), counted("mails", 3, 5)...), b.DepthsUpTo(t, 100))
	require.Equal(t, append(delayed("orders", 3), counted("mails", 3, 2)...), b.DepthsUpTo(t, 8))
}
