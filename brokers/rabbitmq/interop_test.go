package rabbitmq

import (
	"testing"

	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// delivered is the delivery that a publication becomes.
func delivered(p amqp.Publishing) amqp.Delivery {
	return amqp.Delivery{
		Headers: p.Headers, Body: p.Body, MessageId: p.MessageId, ContentType: p.ContentType, DeliveryMode: p.DeliveryMode,
		Type: p.Type,
	}
}

// A service moves to this driver one at a time: messages of watermill-amqp's publisher are read here correctly, and
// those written here are read by watermill-amqp's subscriber, which refuses every header that is not a string.
func TestInterop_WithWatermillAMQP(t *testing.T) {
	sent := message.NewMessage("m-1", []byte("payload"))
	sent.Metadata["tenant"] = "acme"

	t.Run("reads what its publisher writes", func(t *testing.T) {
		p, err := wmamqp.DefaultMarshaler{}.Marshal(sent)
		require.NoError(t, err)
		d := delivered(p)
		got := unmarshal(&d)
		require.Equal(t, sent.UUID, got.UUID)
		require.Equal(t, sent.Payload, got.Payload)
		require.Equal(t, "acme", got.Metadata["tenant"])
	})

	t.Run("its subscriber reads what is written", func(t *testing.T) {
		got, err := wmamqp.DefaultMarshaler{}.Unmarshal(delivered(marshal(sent, nil)))
		require.NoError(t, err)
		require.Empty(t, got.UUID, "watermill-amqp reads no message id property, where this driver and all others put "+
			"it")
		require.Equal(t, sent.Payload, got.Payload)
		require.Equal(t, "acme", got.Metadata["tenant"])
	})
}
