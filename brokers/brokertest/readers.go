package brokertest

import (
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
)

// Two handlers of one service on a bus would read one queue: each would receive a random half of the other's messages,
// and ack it.
func twoPatternsOfOneService(w *world) {
	b := w.bus()
	first := w.reads(b, "invoice.*")
	_, err := b.Subscriber().Subscribe(w.Context(), "user.#")
	require.ErrorIs(w, err, brokers.ErrUnsupported)
	require.ErrorContains(w, err, "WithPatterns", "the error names the remedy")
	_, err = b.Subscriber(brokers.WithPatterns("user.#")).Subscribe(w.Context(), "invoice.*")
	require.ErrorIs(w, err, brokers.ErrUnsupported, "other patterns are refused too")

	w.reads(b, "user.#", brokers.WithGroup("mail")) // another service
	w.reads(b, "invoice.*")                         // the same handler again
	require.NoError(w, first.Close())
}

// On brokers whose groups are queues, two groups would share one queue if the naming scheme had no {group}.
func twoGroupsOnOneQueue(w *world) {
	b := w.open(naming(brokers.Laravel()))
	topic := w.topic("orders")
	first := w.reads(b, topic)
	_, err := b.Subscriber(brokers.WithGroup("mail")).Subscribe(w.Context(), topic)
	require.ErrorIs(w, err, brokers.ErrUnsupported)
	require.ErrorContains(w, err, "{group}")
	w.reads(b, w.topic("users"), brokers.WithGroup("mail"))

	require.NoError(w, first.Close())
	w.reads(b, topic, brokers.WithGroup("mail")) // the queue is free again
}

// Two handlers without a group would share the messages of their topic, where Watermill's gochannel delivers all of
// them to each.
func twoHandlersWithoutAGroup(w *world) {
	b := w.open(group(""))
	topic := w.topic("orders")
	sub := b.Subscriber()
	if _, err := sub.Subscribe(w.Context(), topic); err != nil {
		require.ErrorContains(w, err, "group", "the broker requires a group")
		return
	}
	w.Cleanup(func() { _ = sub.Close() })
	_, err := b.Subscriber().Subscribe(w.Context(), topic)
	require.ErrorIs(w, err, brokers.ErrUnsupported)
	require.ErrorContains(w, err, "WithGroup")
	w.reads(b, topic, brokers.WithGroup("mail"))
	w.reads(b, topic, brokers.WithGroup("mail"))
}

// A subscription to a pattern would receive nothing on a broker that treats it as a name.
func unsupportedPattern(w *world) {
	b := w.open()
	if b.Capabilities().Patterns {
		w.Skip("the broker has patterns with every naming scheme")
	}
	for _, pattern := range []string{"invoice.*", "user.#", "*", "#"} {
		_, err := b.Subscriber().Subscribe(w.Context(), pattern)
		require.ErrorIs(w, err, brokers.ErrUnsupported, pattern)
	}
	_, err := b.Subscriber(brokers.WithPatterns("user.#")).Subscribe(w.Context(), w.topic("orders"))
	require.ErrorIs(w, err, brokers.ErrUnsupported)
}

// reads subscribes until the case ends.
func (w *world) reads(b brokers.Broker, topic string, opts ...brokers.SubscriberOption) message.Subscriber {
	w.Helper()
	sub := b.Subscriber(opts...)
	_, err := sub.Subscribe(w.Context(), topic)
	require.NoError(w, err)
	w.Cleanup(func() { _ = sub.Close() })
	return sub
}
