package brokertest

import (
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/middleware"
)

func publishCopies(w *world) {
	b, topic := w.openTopic("orders")
	gate, open := newGate()
	c := w.consume(b, topic, middleware.Config{Backoff: middleware.None()}, func(r run) error {
		<-gate
		if r.Attempt == 1 {
			return errFails
		}
		return nil
	})
	w.Cleanup(open)
	m := newMessage("as published")
	m.Metadata.Set("k", "as published")
	w.publish(b, topic, m)
	m.Payload[0] = 'X'
	m.Metadata.Set("k", "changed")
	open()
	for _, r := range c.waitRuns(2) {
		require.Equal(w, "as published", string(r.Message.Payload))
		require.Equal(w, "as published", r.Message.Metadata.Get("k"))
	}
}

func publishConcurrently(w *world) {
	b := w.open(concurrency(8))
	topic := w.topic("orders")
	c := w.consume(b, topic, middleware.Config{}, func(run) error { return nil })

	const publishers, each = 16, 10
	p := b.Publisher()
	batches := make([][]*message.Message, publishers)
	var publishing sync.WaitGroup
	for i := range batches {
		batches[i] = w.batch(each)
		publishing.Go(func() {
			if err := p.Publish(topic, batches[i]...); err != nil {
				w.Errorf("publish: %v", err)
			}
		})
	}
	publishing.Wait()
	var want []string
	for _, batch := range batches {
		want = append(want, ids(batch)...)
	}
	c.waitRuns(publishers * each)
	c.quiet()
	require.ElementsMatch(w, want, runIDs(c.seen()))
}

// Every message that Publish did not refuse is delivered to a later consumer.
func publishWithoutConsumer(w *world) {
	b, topic := w.openTopic("orders")
	if err := b.Publisher().Publish(topic, newMessage("early")); err != nil {
		require.ErrorIs(w, err, brokers.ErrUnroutable)
		return
	}
	c := w.consume(b, topic, middleware.Config{}, func(run) error { return nil })
	require.Equal(w, "early", string(c.waitRuns(1)[0].Message.Payload))
}

func publishTooLarge(w *world) {
	b := w.open()
	limit := b.Capabilities().MaxMessageBytes
	if limit == 0 || limit > 64<<20 {
		w.Skip("the broker has no limit, or one too large to test")
	}
	topic := w.topic("orders")
	c := w.consume(b, topic, middleware.Config{}, func(run) error { return nil })
	large := message.NewMessage("large", make([]byte, limit+1))
	require.ErrorIs(w, b.Publisher().Publish(topic, large), brokers.ErrTooLarge)
	require.ErrorIs(w, brokers.Require(b, brokers.Needs{MessageBytes: limit + 1}), brokers.ErrUnsupported)

	w.publish(b, topic, newMessage("next"))
	runs := c.waitRuns(1)
	require.Equal(w, "next", string(runs[0].Message.Payload))
	require.ErrorIs(w, b.Reschedule(w.Context(), runs[0].Origin, large, time.Second), brokers.ErrTooLarge)
}

func publishNothing(w *world) {
	b := w.open()
	require.NoError(w, b.Publisher().Publish(w.topic("orders")))
}
