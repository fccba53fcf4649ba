package brokertest

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
)

const watermillSuite = "WatermillsOwnSuite"

// watermillsOwnSuite runs pubsub/tests. That suite leaves messages unacked at Close, so the drain timeout is short.
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
		if h.TopicsApart {
			return b.Publisher(), &apart{broker: b, group: group, topics: map[string]message.Subscriber{}}
		}
		return b.Publisher(), b.Subscriber()
	}
	tests.TestPubSub(t, *h.Watermill,
		func(t *testing.T) (message.Publisher, message.Subscriber) {
			t.Helper()
			// Each test has its own group: on Kafka the members of a group are rebalanced together even if their topics differ,
			// and each rebalance would wait for another test's unacked messages.
			return construct(t, "watermill-"+path.Base(t.Name()))
		},
		construct)
}

// apart is a Subscriber with a separate group for each topic.
type apart struct {
	broker brokers.Broker
	group  string

	mu     sync.Mutex
	topics map[string]message.Subscriber
}

func (a *apart) of(topic string) message.Subscriber {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.topics[topic] == nil {
		a.topics[topic] = a.broker.Subscriber(brokers.WithGroup(a.group + "-" + topic))
	}
	return a.topics[topic]
}

// Subscribe implements message.Subscriber.
func (a *apart) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return a.of(topic).Subscribe(ctx, topic)
}

// SubscribeInitialize implements message.SubscribeInitializer.
func (a *apart) SubscribeInitialize(topic string) error {
	return a.of(topic).(message.SubscribeInitializer).SubscribeInitialize(topic)
}

// Close implements message.Subscriber.
func (a *apart) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, s := range a.topics {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
