package envelope

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Producer is a handler's attempt that has produced messages. A pipeline puts it into their contexts, because
// Watermill's router publishes them after the pipeline is done with the attempt: a publisher that finds one reports
// publish errors to it, and the attempt is retried or dead-lettered.
type Producer interface {
	// Publish calls publish with messages, all of this attempt. It returns nil when they are published, or when the
	// attempt has failed because of them and the consumed message is settled: then the router must ack it. Messages of a
	// failed attempt are dropped, because the next attempt will produce them again.
	Publish(publish func(...*message.Message) error, messages ...*message.Message) error
}

// WithProducer returns a context for messages produced by p.
func WithProducer(ctx context.Context, p Producer) context.Context {
	return &producerContext{Context: ctx, producer: p}
}

type producerContext struct {
	context.Context

	producer Producer
}

// withoutProducer hides a producer further up the context chain: a router puts its own values on top.
type withoutProducer struct{ context.Context }

// Value implements context.Context.
func (c withoutProducer) Value(key any) any {
	if key == (producerKey{}) {
		return nil
	}
	return c.Context.Value(key)
}

type producerKey struct{}

// Value implements context.Context.
func (c *producerContext) Value(key any) any {
	if key == (producerKey{}) {
		return c
	}
	return c.Context.Value(key)
}

// PublishProduced calls publish with messages, using the [Producer] of those that a handler produced. Every publisher
// that may be part of a router publishes through it: those of this module, and the one that
// middleware.Pipeline.PublisherDecorator returns. It returns the first error; later messages are not published.
func PublishProduced(publish func(...*message.Message) error, messages ...*message.Message) error {
	if len(messages) == 0 {
		return publish()
	}
	for start := 0; start < len(messages); {
		c := producedBy(messages[start])
		end := start + 1
		for end < len(messages) && sameProducer(c, producedBy(messages[end])) {
			end++
		}
		if c == nil && start == 0 && end == len(messages) {
			return publish(messages...)
		}
		if err := publishGroup(c, publish, messages[start:end]); err != nil {
			return err
		}
		start = end
	}
	return nil
}

func publishGroup(c *producerContext, publish func(...*message.Message) error, messages []*message.Message) error {
	if c == nil {
		return publish(messages...)
	}
	for _, m := range messages { // receivers and further publishers are not part of the attempt
		m.SetContext(withoutProducer{m.Context()})
	}
	return c.producer.Publish(publish, messages...)
}

func producedBy(m *message.Message) *producerContext {
	if m == nil {
		return nil
	}
	c, _ := m.Context().Value(producerKey{}).(*producerContext)
	return c
}

func sameProducer(a, b *producerContext) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.producer == b.producer
}
