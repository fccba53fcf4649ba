package brokertest

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/middleware"
)

// producedUnpublishable: a router publishes what a handler returned after the pipeline is done. What cannot be
// published then is a failed attempt: it is retried, counted, and dead-lettered, and never reported as a success.
func producedUnpublishable(w *world) {
	b := w.open()
	topic := w.topic("orders")
	refusing := b.Publisher()
	require.NoError(w, refusing.Close())
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

// finished counts the successes that a pipeline reports.
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
