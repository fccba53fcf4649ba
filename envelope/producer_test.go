package envelope_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

type countingProducer struct{ calls int }

func (p *countingProducer) Publish(publish func(...*message.Message) error, messages ...*message.Message) error {
	p.calls++
	return publish(messages...)
}

type routersKey struct{}

// A router adds its values on top of the producer's context, and publishers may be nested: each message still reaches
// its producer once, and messages of one producer in a row go together.
func TestPublishProduced(t *testing.T) {
	first, second := &countingProducer{}, &countingProducer{}
	produced := func(p envelope.Producer) *message.Message {
		m := message.NewMessage("x", nil)
		m.SetContext(context.WithValue(envelope.WithProducer(m.Context(), p), routersKey{}, "orders"))
		return m
	}
	messages := []*message.Message{produced(first), produced(first), message.NewMessage("plain", nil), produced(second)}
	var groups []int
	inner := func(messages ...*message.Message) error {
		groups = append(groups, len(messages))
		return nil
	}
	outer := func(messages ...*message.Message) error { return envelope.PublishProduced(inner, messages...) }
	require.NoError(t, envelope.PublishProduced(outer, messages...))
	require.Equal(t, []int{2, 1, 1}, groups)
	require.Equal(t, 1, first.calls)
	require.Equal(t, 1, second.calls)
	require.Equal(t, "orders", messages[0].Context().Value(routersKey{}))
	require.NoError(t, envelope.PublishProduced(inner))
}
