package brokertest

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// newMessage returns a message with these headers, in pairs of key and value.
func newMessage(payload string, headers ...string) *message.Message {
	m := message.NewMessage(watermill.NewUUID(), []byte(payload))
	for pair := range slices.Chunk(headers, 2) {
		m.Metadata.Set(pair[0], pair[1])
	}
	return m
}

// delayed returns a message with a first-delivery delay.
func delayed(payload string, d time.Duration) *message.Message {
	m := newMessage(payload)
	envelope.SetDelay(m, d)
	return m
}

// batchOf returns n messages with that payload.
func batchOf(n int, payload string) []*message.Message {
	batch := make([]*message.Message, n)
	for i := range batch {
		batch[i] = newMessage(payload)
	}
	return batch
}

// batch returns n messages whose payloads end in the digits 0 to 9 in turn.
func (w *world) batch(n int) []*message.Message {
	batch := make([]*message.Message, n)
	for i := range batch {
		batch[i] = newMessage(strconv.Itoa(i))
	}
	return batch
}

func (w *world) TestPublish_CopiesItsMessages() {
	b, topic := w.openTopic("orders")
	gate, open := w.gate()
	c := w.consume(b, topic, middleware.Config{Backoff: middleware.None()}, func(r run) error {
		<-gate
		if r.Attempt == 1 {
			return errFails
		}
		return nil
	})
	m := newMessage("as published", "k", "as published")
	w.publish(b, topic, m)
	m.Payload[0] = 'X'
	m.Metadata.Set("k", "changed")
	open()
	for _, r := range c.waitRuns(2) {
		require.Equal(w, "as published", r.payload())
		require.Equal(w, "as published", r.Message.Metadata.Get("k"))
	}
}

func (w *world) TestPublish_IsSafeForConcurrentUse() {
	b, topic := w.openTopic("orders", concurrency(8))
	c := w.consume(b, topic, middleware.Config{}, succeeds)

	const publishers, each = 16, 10
	p := b.Publisher()
	batches := make([][]*message.Message, publishers)
	var publishing sync.WaitGroup
	for i := range batches {
		batches[i] = w.batch(each)
		publishing.Go(func() { assert.NoError(w, p.Publish(topic, batches[i]...)) })
	}
	publishing.Wait()
	require.ElementsMatch(w, ids(slices.Concat(batches...)), runIDs(c.exactly(publishers*each)))
}

// Every message that Publish did not refuse is delivered to a later consumer.
func (w *world) TestPublish_WithoutAConsumerStoresOrRefuses() {
	b, topic := w.openTopic("orders")
	if err := b.Publisher().Publish(topic, newMessage("early")); err != nil {
		require.ErrorIs(w, err, brokers.ErrUnroutable)
		return
	}
	c := w.consume(b, topic, middleware.Config{}, succeeds)
	require.Equal(w, "early", c.waitRuns(1)[0].payload())
}

func (w *world) TestPublish_OfATooLargeMessageIsRefused() {
	b := w.open()
	limit := b.Capabilities().MaxMessageBytes
	w.skipIf(limit == 0 || limit > 64<<20, "the broker has no limit, or one too large to test")
	topic := w.topic("orders")
	c := w.consume(b, topic, middleware.Config{}, succeeds)
	large := message.NewMessage("large", make([]byte, limit+1))
	require.ErrorIs(w, b.Publisher().Publish(topic, large), brokers.ErrTooLarge)
	require.ErrorIs(w, brokers.Require(b, brokers.Needs{MessageBytes: limit + 1}), brokers.ErrUnsupported)

	w.publish(b, topic, newMessage("next"))
	runs := c.waitRuns(1)
	require.Equal(w, "next", runs[0].payload())
	require.ErrorIs(w, b.Reschedule(w.Context(), runs[0].Origin, large, time.Second), brokers.ErrTooLarge)
}

func (w *world) TestPublish_OfNoMessagesSucceeds() {
	require.NoError(w, w.open().Publisher().Publish(w.topic("orders")))
}

// A router publishes a handler's messages after the pipeline has returned. If that fails, the attempt has failed: it is
// counted, retried and dead-lettered, and never reported as a success.
func (w *world) TestProduced_UnpublishableMessageFailsTheAttempt() {
	b, topic := w.openTopic("orders")
	closed := w.open()
	refusing := closed.Publisher()
	require.NoError(w, closed.Close())
	succeeded := make(chan struct{}, 100)
	c := w.newConsumer(b, middleware.Config{
		MaxAttempts: 3, Backoff: w.steps(time.Second),
		Observer: finished{successes: succeeded},
	})
	c.router.AddHandler("handler", topic, b.Subscriber(), w.topic("invoices"), refusing,
		func(m *message.Message) ([]*message.Message, error) {
			c.record(m)
			return []*message.Message{newMessage("invoice"), newMessage("receipt")}, nil
		})
	c.start()
	w.publish(b, topic, newMessage("order"))

	require.Equal(w, "order", string(w.deadLetters(b, topic, 1)[0].Payload))
	for i, r := range c.exactly(3) {
		require.Equal(w, i+1, r.Attempt)
	}
	require.Empty(w, succeeded)
}

// A handler may return its message, a copy of it, or another with its headers. The next consumer has all its attempts
// left, no matter how many the handler has used.
func (w *world) TestProduced_CopiesStartAtTheFirstAttempt() {
	b := w.open()
	topic, next := w.topic("orders"), w.topic("enriched")
	cfg := middleware.Config{MaxAttempts: 3, Backoff: w.steps(100 * time.Millisecond)}
	second := w.consume(b, next, cfg, failsBefore(2))
	first := w.newConsumer(b, cfg)
	first.router.AddHandler("handler", topic, b.Subscriber(), next, b.Publisher(),
		func(m *message.Message) ([]*message.Message, error) {
			if first.record(m).Attempt < 3 {
				return nil, errFails
			}
			headers := newMessage("headers")
			headers.Metadata = m.Metadata
			return []*message.Message{m.Copy(), headers, m}, nil
		})
	first.start()
	w.publish(b, topic, newMessage("order"))

	attempts := map[int]int{}
	for _, r := range second.exactly(6) {
		attempts[r.Attempt]++
		if r.Attempt == 1 {
			for _, key := range []string{envelope.KeyErrorMessage, envelope.KeyFirstFailure} {
				require.NotContains(w, r.Message.Metadata, key)
			}
		}
	}
	require.Equal(w, map[int]int{1: 3, 2: 3}, attempts)
	require.Len(w, first.seen(), 3)
}

// finished counts the successes reported by a pipeline.
type finished struct {
	middleware.NopObserver

	successes chan struct{}
}

// Finished implements middleware.Observer.
func (f finished) Finished(_ context.Context, e middleware.Finished) {
	if e.Outcome == middleware.OutcomeSuccess {
		f.successes <- struct{}{}
	}
}
