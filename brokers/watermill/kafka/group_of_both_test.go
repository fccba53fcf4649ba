package kafka_test

import (
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/kafka"
	"github.com/redrive-go/redrive/brokers/memory"
	"github.com/redrive-go/redrive/brokers/watermill/kafka"
	"github.com/redrive-go/redrive/envelope"
)

// A native member of the group may leave its retries to the adapter, on the way back to it, but not to one of another
// cluster, whatever that is called in Delays.
func TestReschedule_OfANativeMembersMessage(t *testing.T) {
	one, two := cluster(t), cluster(t, kfake.ClusterID("other"))
	b, err := brokers.Open(t.Context(), "kafka://"+strings.Join(one.ListenAddrs(), ",")+"?group=billing")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	messages, err := b.Subscriber().Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("1", nil)))
	m := <-messages
	origin, ok := envelope.OriginFrom(m.Context())
	require.True(t, ok)
	delays, err := memory.New(brokers.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, delays.Close()) })
	for on, want := range map[*kfake.Cluster]error{one: nil, two: brokers.ErrUnroutable} {
		adapter, err := kafka.New(t.Context(), kafka.Config{
			Broker: brokers.Config{URL: urlOf(on, "group=billing&delays-server=shop")}, Delays: delays,
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, adapter.Close()) })
		require.ErrorIs(t, adapter.Reschedule(m.Context(), *origin, m.Copy(), time.Second), want)
	}
	m.Ack()
}
