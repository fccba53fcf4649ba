package brokertest

import (
	"log/slog"
	"path"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
)

const watermillSuite = "WatermillsOwnSuite"

// watermillsOwnSuite runs pubsub/tests. It leaves messages unacked at Close, which the drain must not wait long for.
func watermillsOwnSuite(t *testing.T, h Harness) {
	t.Helper()
	backend := h.Backend(t)
	construct := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		t.Helper()
		b, err := backend.Open(brokers.Config{
			Group: group, DrainTimeout: time.Second, PublishTimeout: h.Wait, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b.Publisher(), b.Subscriber()
	}
	tests.TestPubSub(t, *h.Watermill,
		func(t *testing.T) (message.Publisher, message.Subscriber) {
			t.Helper()
			// One group for each test: the members of a group on Kafka are rebalanced together, whatever their topics, and
			// each rebalance waits for what another test has not acked.
			return construct(t, "watermill-"+path.Base(t.Name()))
		},
		construct)
}
