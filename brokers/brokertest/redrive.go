package brokertest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// batchRedriver is implemented by brokers that redrive several messages in one call.
type batchRedriver interface {
	RescheduleAll(ctx context.Context, origins []envelope.Origin, messages []*message.Message) []error
}

// A redrive to a consumer that never existed would create a queue that no consumer reads, and the message would wait
// there unnoticed.
func (w *world) TestRedrive_ToAMissingConsumerIsRefused() {
	operator := w.open(group("operator"))
	topic := w.topic("orders")
	origin := envelope.Origin{
		Broker: operator.Capabilities().Scheme, Topic: topic, Consumer: topic + ".billing",
		RedriveTo: topic + ".billing.again",
	}
	ctx := envelope.WithExistingOnly(w.Context())
	for _, recorded := range []string{"", origin.RedriveTo} {
		origin.RedriveTo = recorded
		for range 2 { // the first call must not create the queue that the second finds
			err := operator.Reschedule(ctx, origin, newMessage("lost"), 0)
			require.ErrorIs(w, err, brokers.ErrUnroutable)
			require.ErrorContains(w, err, topic)
			require.ErrorContains(w, err, "start the consumer")
		}
		if all, ok := operator.(batchRedriver); ok {
			for _, err := range all.RescheduleAll(ctx, []envelope.Origin{origin, origin},
				[]*message.Message{newMessage("a"), newMessage("b")}) {
				require.ErrorIs(w, err, brokers.ErrUnroutable)
				require.ErrorContains(w, err, "start the consumer")
			}
		}
	}

	c := w.consume(w.open(group("billing")), topic, middleware.Config{}, succeeds)
	w.publish(operator, topic, newMessage("first"))
	runs := c.waitRuns(1)
	require.NoError(w, operator.Reschedule(ctx, runs[0].Origin, newMessage("again"), 0), "the consumer exists now")
	require.Equal(w, "again", c.exactly(2)[1].payload(), "no refused message was kept")
}

// A message that a foreign consumer dead-lettered is redriven to its topic.
func (w *world) TestPublish_ToAMissingTopicThatMustExistIsRefused() {
	b, topic := w.openTopic("orders")
	publish := func(payload string) error {
		m := newMessage(payload)
		m.SetContext(envelope.WithExistingOnly(w.Context()))
		return b.Publisher().Publish(topic, m)
	}
	for range 2 {
		require.ErrorIs(w, publish("lost"), brokers.ErrUnroutable)
	}
	c := w.consume(b, topic, middleware.Config{}, succeeds)
	require.NoError(w, publish("kept"))
	require.Equal(w, "kept", c.exactly(1)[0].payload())
}

// An operator's server has its own naming scheme, or none: a redrive goes to the destination that the consumer's broker
// has recorded.
func (w *world) TestRedrive_UsesTheNamingOfTheConsumer() {
	service := w.open(group("billing"), naming(brokers.NameScheme{Retry: "{queue}-again{.delay}", Dead: "{queue}-dead"}))
	operator := w.open(group("operator"))
	topic := w.topic("orders")
	dead := make(chan *envelope.DeadLetter, 1)
	var fixed atomic.Bool
	c := w.consume(service, topic, middleware.Config{MaxAttempts: 1, DeadLetters: keepIn(dead)}, failsUntil(&fixed))
	w.publish(service, topic, newMessage("order"))
	letter := receive(w, dead, "the dead letter")
	fixed.Store(true)
	again := letter.Message.Copy()
	delete(again.Metadata, envelope.KeyRetryCount)
	require.NoError(w, operator.Reschedule(envelope.WithExistingOnly(w.Context()), letter.Origin, again, 0))
	require.Equal(w, "order", c.exactly(2)[1].payload())
}

// Before a redrive, an operator wants to know whether any consumer would read it.
func (w *world) TestRedrive_ReadersAreCounted() {
	operator := w.open(group("operator"))
	counter, ok := operator.(brokers.ReaderCounter)
	w.skipIf(!ok, "the broker counts no readers")
	topic := w.topic("orders")
	_, err := counter.Readers(w.Context(), envelope.Origin{Topic: topic, Consumer: topic + ".billing"})
	w.skipIf(errors.Is(err, errors.ErrUnsupported), "the broker does not know its readers")
	require.NoError(w, err)
	c := w.consume(w.open(group("billing")), topic, middleware.Config{}, succeeds)
	w.publish(operator, topic, newMessage("order"))
	origin := c.waitRuns(1)[0].Origin
	awaitReaders := func(want bool) {
		w.await(func() string {
			if n, err := counter.Readers(w.Context(), origin); err != nil || n > 0 != want {
				return fmt.Sprintf("%d readers, wanted any: %t", n, want)
			}
			return ""
		})
	}
	awaitReaders(true)
	n, err := counter.Readers(w.Context(), envelope.Origin{Topic: topic, Consumer: origin.Consumer + "-gone"})
	require.NoError(w, err)
	require.Zero(w, n, "of another consumer")
	c.stop()
	awaitReaders(false)
}
