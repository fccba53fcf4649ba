package sqlqueue_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/brokers"
	_ "github.com/redrive-go/redrive/brokers/sqlqueue"
)

// fileURL names a new database file. Parameters follow it.
func fileURL(t *testing.T, params string) string {
	t.Helper()
	return "sqlite://" + filepath.Join(t.TempDir(), "queue.db") + "?" + params
}

func openURL(t *testing.T, url string) brokers.Broker {
	t.Helper()
	b, err := brokers.Open(t.Context(), url)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func TestSQLite_Watermill(t *testing.T) {
	url := fileURL(t, "x-drain=200ms&x-nack-delay=10ms")
	construct := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		t.Helper()
		b := openURL(t, url)
		return b.Publisher(), b.Subscriber(brokers.WithGroup(group))
	}
	tests.TestPubSub(t, tests.Features{
		ConsumerGroups:                      true,
		GuaranteedOrder:                     true,
		GuaranteedOrderWithSingleSubscriber: true,
		Persistent:                          true,
		ForceShort:                          true,
	}, func(t *testing.T) (message.Publisher, message.Subscriber) {
		t.Helper()
		return construct(t, "")
	}, construct)
}

func TestSmoke(t *testing.T) {
	b := openURL(t, fileURL(t, ""))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	require.NoError(t, b.Publisher().Publish("orders", message.NewMessage("1", []byte("a"))))
	in, err := b.Subscriber().Subscribe(ctx, "orders")
	require.NoError(t, err)
	m := <-in
	require.Equal(t, "a", string(m.Payload))
	m.Ack()
}
