package brokertest

import (
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/middleware"
)

// counted starts a consumer on a broker that counts messages. Its handler retries "later" in an hour, fails forever for
// "dies", and waits with "running" until open is called.
func (w *world) counted(topic string) (b brokers.Broker, counts brokers.DepthReporter, c *consumer, open func()) {
	w.Helper()
	b = w.open()
	counts, ok := b.(brokers.DepthReporter)
	w.skipIf(!ok, "the broker does not count waiting messages")
	gate, open := w.gate()
	c = w.consume(b, topic, middleware.Config{}, func(r run) error {
		switch r.payload() {
		case "later":
			return middleware.RetryAfter(errFails, time.Hour)
		case "dies":
			return middleware.Permanent(errFails)
		case "running":
			<-gate
		}
		return nil
	})
	return b, counts, c, open
}

// Brokers that count waiting messages count delayed first deliveries and retries separately, and do not count messages
// that are ready, running or settled among them.
func (w *world) TestDepths_CountWaitingMessages() {
	topic := w.topic("reminders")
	b, counts, c, open := w.counted(topic)
	w.depths(counts, topic, 0, 0)

	w.publish(b, topic, delayed("delayed", time.Hour), delayed("delayed", time.Hour), delayed("delayed", 2*time.Hour))
	w.depths(counts, topic, 3, 0)

	w.publish(b, topic, newMessage("later"), newMessage("later"))
	c.waitRuns(2)
	w.depths(counts, topic, 3, 2)

	w.publish(b, topic, delayed("delayed", w.scaled(10*time.Second)))
	c.waitRuns(3)
	w.publish(b, topic, newMessage("running"), newMessage("ready"))
	c.waitRuns(4)
	w.depths(counts, topic, 3, 2)
	open()
	c.waitRuns(5)
	w.depths(counts, topic, 3, 2)

	require.NoError(w, b.Close())
	_, err := counts.Depths(w.Context())
	require.ErrorIs(w, err, brokers.ErrClosed)
}

// Brokers that count dead letters and ready messages count dead letters under the topic in which they died, and a
// message as ready until a consumer has room for it.
func (w *world) TestDepths_CountReadyMessagesAndDeadLetters() {
	topic := w.topic("orders")
	b, counts, c, open := w.counted(topic)
	w.publish(b, topic, newMessage("dies"), newMessage("dies"), newMessage("fine"))
	c.waitRuns(3)
	all, err := counts.Depths(w.Context())
	require.NoError(w, err)
	ready := func(d brokers.Depth) bool { return d.Topic == topic && d.Kind == brokers.DepthReady }
	w.skipIf(!slices.ContainsFunc(all, ready), "the broker does not count ready messages")
	w.waitDepth(counts, topic, brokers.DepthDeadLetter, func(n int64) bool { return n == 2 })
	w.waitDepth(counts, topic, brokers.DepthReady, func(n int64) bool { return n == 0 })

	const many = 600 // more than a subscription prefetches
	w.publish(b, topic, append(batchOf(1, "running"), batchOf(many, "fine")...)...)
	c.waitRuns(4)
	w.waitDepth(counts, topic, brokers.DepthReady, func(n int64) bool { return n > 0 && n <= many })
	w.waitDepth(counts, topic, brokers.DepthDeadLetter, func(n int64) bool { return n == 2 })
	open()
	c.waitRuns(4 + many)
	w.waitDepth(counts, topic, brokers.DepthReady, func(n int64) bool { return n == 0 })
}

// waitDepth waits until the number of messages of one kind fits.
func (w *world) waitDepth(counts brokers.DepthReporter, topic string, kind brokers.DepthKind, fits func(int64) bool) {
	w.Helper()
	w.waitDepths(counts, topic, func(have map[brokers.DepthKind]int64) bool { return fits(have[kind]) })
}

// depths waits until that many messages of topic are waiting. A message leaves its wait queue some time after it was
// delivered.
func (w *world) depths(counts brokers.DepthReporter, topic string, delayed, retries int64) {
	w.Helper()
	w.waitDepths(counts, topic, func(have map[brokers.DepthKind]int64) bool {
		return have[brokers.DepthDelayed] == delayed && have[brokers.DepthRetry] == retries
	})
}

// waitDepths waits until the numbers of a topic's messages fit.
func (w *world) waitDepths(counts brokers.DepthReporter, topic string, fit func(map[brokers.DepthKind]int64) bool) {
	w.Helper()
	w.await(func() (missing string) {
		all, err := counts.Depths(w.Context())
		require.NoError(w, err)
		have := map[brokers.DepthKind]int64{}
		for _, d := range all {
			if d.Topic == topic {
				have[d.Kind] += d.Messages
			}
		}
		if fit(have) {
			return ""
		}
		return fmt.Sprintf("the topic has these messages: %v", have)
	})
}

// Two handlers of one service on a bus would read one queue: each would receive a random half of the other's messages,
// and ack it.
func (w *world) TestSubscribe_TwoPatternsOfOneServiceAreRefused() {
	b := w.bus()
	first, _ := w.subscribe(b, "invoice.*")
	_, err := b.Subscriber().Subscribe(w.Context(), "user.#")
	require.ErrorIs(w, err, brokers.ErrUnsupported)
	require.ErrorContains(w, err, "WithPatterns", "the error names the remedy")
	_, err = b.Subscriber(brokers.WithPatterns("user.#")).Subscribe(w.Context(), "invoice.*")
	require.ErrorIs(w, err, brokers.ErrUnsupported, "other patterns are refused too")

	w.subscribe(b, "user.#", brokers.WithGroup("mail")) // another service
	w.subscribe(b, "invoice.*")                         // the same handler again
	require.NoError(w, first.Close())
}

// On brokers whose groups are queues, two groups would share one queue if the naming scheme had no {group}.
func (w *world) TestSubscribe_TwoGroupsOnOneQueueAreRefused() {
	b, topic := w.openTopic("orders", naming(brokers.Laravel()))
	first, _ := w.subscribe(b, topic)
	_, err := b.Subscriber(brokers.WithGroup("mail")).Subscribe(w.Context(), topic)
	require.ErrorIs(w, err, brokers.ErrUnsupported)
	require.ErrorContains(w, err, "{group}")
	w.subscribe(b, w.topic("users"), brokers.WithGroup("mail"))

	require.NoError(w, first.Close())
	w.subscribe(b, topic, brokers.WithGroup("mail")) // the queue is free again
}

// Two handlers without a group would share the messages of their topic, where Watermill's gochannel delivers all of
// them to each.
func (w *world) TestSubscribe_TwoHandlersWithoutAGroupAreRefused() {
	b, topic := w.openTopic("orders", group(""))
	sub := b.Subscriber()
	if _, err := sub.Subscribe(w.Context(), topic); err != nil {
		require.ErrorContains(w, err, "group", "the broker requires a group")
		return
	}
	w.Cleanup(func() { _ = sub.Close() })
	_, err := b.Subscriber().Subscribe(w.Context(), topic)
	require.ErrorIs(w, err, brokers.ErrUnsupported)
	require.ErrorContains(w, err, "WithGroup")
	w.subscribe(b, topic, brokers.WithGroup("mail"))
	w.subscribe(b, topic, brokers.WithGroup("mail"))
}

// A subscription to a pattern would receive nothing on a broker that treats it as a name.
func (w *world) TestSubscribe_ToAnUnsupportedPatternIsRefused() {
	b := w.open()
	w.skipIf(b.Capabilities().Patterns, "the broker has patterns with every naming scheme")
	for _, pattern := range []string{"invoice.*", "user.#", "*", "#"} {
		_, err := b.Subscriber().Subscribe(w.Context(), pattern)
		require.ErrorIs(w, err, brokers.ErrUnsupported, pattern)
	}
	_, err := b.Subscriber(brokers.WithPatterns("user.#")).Subscribe(w.Context(), w.topic("orders"))
	require.ErrorIs(w, err, brokers.ErrUnsupported)
}

// subscribe subscribes until the case ends.
func (w *world) subscribe(
	b brokers.Broker, topic string, opts ...brokers.SubscriberOption,
) (message.Subscriber, <-chan *message.Message) {
	w.Helper()
	sub := b.Subscriber(opts...)
	in, err := sub.Subscribe(w.Context(), topic)
	require.NoError(w, err)
	w.Cleanup(func() { _ = sub.Close() })
	return sub, in
}
