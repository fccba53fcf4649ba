package rabbitmq

import (
	"testing"

	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

// delivered returns the delivery of a publication.
func delivered(p amqp.Publishing) amqp.Delivery {
	return amqp.Delivery{
		Headers: p.Headers, Body: p.Body, MessageId: p.MessageId, ContentType: p.ContentType, DeliveryMode: p.DeliveryMode,
		Type: p.Type,
	}
}

// Services can move to this driver one by one: it reads messages of watermill-amqp's publisher correctly, and
// watermill-amqp's subscriber, which refuses every header that is not a string, reads those that it publishes.
func TestInterop_WithWatermillAMQP(t *testing.T) {
	sent := message.NewMessage("m-1", []byte("payload"))
	sent.Metadata["tenant"] = "acme"

	t.Run("we read its publisher's messages", func(t *testing.T) {
		p, err := wmamqp.DefaultMarshaler{}.Marshal(sent)
		require.NoError(t, err)
		d := delivered(p)
		got := unmarshal(&d)
		require.Equal(t, sent.UUID, got.UUID)
		require.Equal(t, sent.Payload, got.Payload)
		require.Equal(t, "acme", got.Metadata["tenant"])
	})

	t.Run("its subscriber reads our messages", func(t *testing.T) {
		got, err := wmamqp.DefaultMarshaler{}.Unmarshal(delivered(marshal(sent, nil)))
		require.NoError(t, err)
		require.Empty(t, got.UUID, "watermill-amqp reads no message id property, where this driver and all others put "+
			"it")
		require.Equal(t, sent.Payload, got.Payload)
		require.Equal(t, "acme", got.Metadata["tenant"])
	})
}
