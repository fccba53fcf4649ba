package kafka_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/watermill/kafka"
)

// If a topic is deleted and recreated, or loses its last records, positions are used again. A foreign record used to
// get the id of an earlier one at the same position, so that the idempotency guard acked it unhandled.
func TestIdentity_PositionsThatStartOver(t *testing.T) {
	t.Parallel()
	c := cluster(t)
	seen := map[string]bool{}
	for i := range 2 {
		client, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...))
		require.NoError(t, err)
		defer client.Close()
		admin := kadm.NewClient(client)
		_, err = admin.CreateTopic(t.Context(), 1, 1, nil, "orders")
		require.NoError(t, err)
		r := &kgo.Record{Topic: "orders", Timestamp: time.UnixMilli(int64(1 + i)), Value: []byte("foreign")}
		require.NoError(t, client.ProduceSync(t.Context(), r).FirstErr())
		for again := range 2 { // the same at each delivery
			delays, err := memory.New(brokers.Config{})
			require.NoError(t, err)
			b, err := kafka.New(t.Context(), kafka.Config{
				Broker: brokers.Config{URL: urlOf(c, fmt.Sprintf("group=billing-%d-%d", i, again))}, Delays: delays,
			})
			require.NoError(t, err)
			messages, err := b.Subscriber().Subscribe(t.Context(), "orders")
			require.NoError(t, err)
			m := <-messages
			m.Ack()
			seen[m.UUID] = true
			require.Len(t, seen, i+1)
			require.NoError(t, errors.Join(b.Close(), delays.Close()))
		}
		_, err = admin.DeleteTopics(t.Context(), "orders")
		require.NoError(t, err)
	}
}
