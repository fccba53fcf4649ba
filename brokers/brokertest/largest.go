package brokertest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// triedSize is the largest message that the cases about the largest messages publish.
const triedSize = 17 << 20

func largestPayload(w *world) {
	b := w.open()
	w.largest(b, w.topic("orders"), b.Capabilities().MaxMessageBytes, sizedPayload)
}

func sizedPayload(n int64) *message.Message { return newMessage(strings.Repeat("x", int(n))) }

// A reader of dead letters, such as a collector, may start before there is one. The queue that it creates must have
// room for the largest message.
func largestWithAnEarlyReader(w *world) {
	b, topic := w.openTopic("orders")
	w.read(b, brokers.NameScheme{}.For(topic, defaultGroup).Dead, 0)
	w.largest(b, topic, b.Capabilities().MaxMessageBytes, sizedPayload)
}

func largestHeaders(w *world) {
	b := w.open()
	w.largest(b, w.topic("orders"), b.Capabilities().MaxHeaderBytes, func(n int64) *message.Message {
		m := newMessage("large")
		m.Metadata.Set("note", strings.Repeat("x", int(n)))
		return m
	})
}

// A foreign producer may have stored a message that the broker accepts from it but not from us: it cannot be retried,
// and is dead-lettered to the first sink that has room. Those behind it are handled.
func largestWithoutRoom(w *world) {
	b, topic := w.openTopic("orders")
	tooLarge := fmt.Errorf("the message: %w", brokers.ErrTooLarge)
	c := w.consume(b, topic, middleware.Config{
		MaxAttempts: 3, Backoff: w.steps(0),
		Rescheduler: middleware.ReschedulerFunc(
			func(context.Context, envelope.Origin, *message.Message, time.Duration) error {
				return tooLarge
			}),
		DeadLetters: middleware.Sinks{middleware.DeadLetterFunc(func(context.Context, *envelope.DeadLetter) error {
			return tooLarge
		}), b},
	}, func(r run) error {
		if string(r.Message.Payload) == "foreign" {
			return errFails
		}
		return nil
	})
	w.publish(b, topic, newMessage("foreign"), newMessage("next"))
	require.Equal(w, "foreign", string(w.deadLetters(b, brokers.NameScheme{}, topic, 1)[0].Payload))
	c.waitRuns(2)
	c.quiet()
	require.Len(w, c.seen(), 2)
}

// largest publishes the largest message that the broker accepts, to within 64 bytes, to a handler that panics with a
// long reason. Every published message can be retried and dead-lettered, and the message behind it is handled.
func (w *world) largest(b brokers.Broker, topic string, limit int64, sized func(int64) *message.Message) {
	w.Helper()
	if limit == 0 || limit > triedSize {
		w.Skip("the broker has no limit, or one too large to test")
	}
	dies := make(chan struct{}, 1)
	c := w.consume(b, topic, middleware.Config{
		MaxAttempts: 2, Backoff: w.steps(0),
		DeadLetters: middleware.DeadLetterFunc(func(ctx context.Context, d *envelope.DeadLetter) error {
			err := b.DeadLetter(ctx, d)
			if err == nil {
				dies <- struct{}{}
			}
			return err
		}),
	}, func(r run) error {
		if string(r.Message.Payload) == "next" {
			return nil
		}
		panic(strings.Repeat("the reason is as long as possible ", 1000)) // plus its stack
	})

	n, p := limit, b.Publisher()
	large := sized(n)
	for p.Publish(topic, large) != nil {
		n -= 64
		require.Greater(w, n, limit-16<<10, "nothing near the limit can be published")
		large = sized(n)
	}
	w.publish(b, topic, newMessage("next"))

	receive(w, dies, "the largest message to be handled or dead-lettered")
	dead := w.deadLetters(b, brokers.NameScheme{}, topic, 1)[0]
	require.Equal(w, large.UUID, dead.UUID)
	same := string(large.Payload) == string(dead.Payload) // Equal would print both
	require.True(w, same, "the payload is unchanged")
	require.Equal(w, large.Metadata.Get("note"), dead.Metadata.Get("note"))
	var attempts []int
	for _, r := range c.waitRuns(3) {
		if r.id() == large.UUID {
			attempts = append(attempts, r.Attempt)
		}
	}
	require.Equal(w, []int{1, 2}, attempts)
}
