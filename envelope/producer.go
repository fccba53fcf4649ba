package envelope

import (
	"context"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Producer is a handler's attempt that has produced messages. A pipeline puts it into their contexts, because
// Watermill's router publishes them after the pipeline is done with the attempt: a publisher that finds one reports
// publish errors to it, and the attempt is retried or dead-lettered. It must be comparable.
type Producer interface {
	// Publish calls publish with messages, all of this attempt. It returns nil when they are published, or when the
	// attempt has failed because of them and the consumed message is settled: then the router must ack it. Messages of a
	// failed attempt are dropped, because the next attempt will produce them again.
	Publish(publish func(...*message.Message) error, messages ...*message.Message) error
}

type producerKey struct{}

// WithProducer returns a context for messages produced by p.
func WithProducer(ctx context.Context, p Producer) context.Context {
	return context.WithValue(ctx, producerKey{}, p)
}

func producerOf(m *message.Message) Producer {
	if m == nil {
		return nil
	}
	p, _ := m.Context().Value(producerKey{}).(Producer)
	return p
}

// PublishProduced calls publish with messages, using the [Producer] of those that a handler produced. Every publisher
// that may be part of a router publishes through it: those of this module, and the one that
// middleware.Pipeline.PublisherDecorator returns. It returns the first error; later messages are not published.
func PublishProduced(publish func(...*message.Message) error, messages ...*message.Message) error {
	if len(messages) == 0 {
		return publish()
	}
	for len(messages) > 0 {
		p := producerOf(messages[0])
		n := 1
		for n < len(messages) && producerOf(messages[n]) == p {
			n++
		}
		if err := publishGroup(p, publish, messages[:n]); err != nil {
			return err
		}
		messages = messages[n:]
	}
	return nil
}

func publishGroup(p Producer, publish func(...*message.Message) error, messages []*message.Message) error {
	if p == nil {
		return publish(messages...)
	}
	for _, m := range messages { // receivers and further publishers are not part of the attempt
		m.SetContext(WithProducer(m.Context(), nil))
	}
	return p.Publish(publish, messages...)
}
