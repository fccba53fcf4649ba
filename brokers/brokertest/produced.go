package brokertest

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// producedUnpublishable: a router publishes a handler's messages after the pipeline has returned. If that fails, the
// attempt has failed: it is counted, retried and dead-lettered, and never reported as a success.
func producedUnpublishable(w *world) {
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

	dead := w.deadLetters(b, brokers.NameScheme{}, topic, 1)
	require.Equal(w, "order", string(dead[0].Payload))
	c.quiet()
	for i, r := range c.seen() {
		require.Equal(w, i+1, r.Attempt)
	}
	require.Len(w, c.seen(), 3)
	require.Empty(w, succeeded)
}

// producedCopies: a handler may return its message, a copy of it, or another with its headers. The next consumer has
// all its attempts left, no matter how many the handler has used.
func producedCopies(w *world) {
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

	runs := second.waitRuns(6)
	second.quiet()
	attempts := map[int]int{}
	for _, r := range runs {
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
