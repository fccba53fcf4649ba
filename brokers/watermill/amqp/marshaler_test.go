package amqp_test

import (
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/watermill/amqp"
)

// Messages to and from a plain Watermill service are compatible.
func TestMarshaler_IsCompatibleWithWatermills(t *testing.T) {
	m := message.NewMessage("id-1", []byte("payload"))
	m.Metadata["customer"] = "7"
	for name, from := range map[string]wamqp.Marshaler{"ours": amqp.Marshaler{}, "theirs": wamqp.DefaultMarshaler{}} {
		for _, to := range []wamqp.Marshaler{amqp.Marshaler{}, wamqp.DefaultMarshaler{}} {
			p, err := from.Marshal(m)
			require.NoError(t, err)
			require.Equal(t, amqp091.Persistent, p.DeliveryMode)
			got, err := to.Unmarshal(amqp091.Delivery{Acknowledger: &amqp091.Channel{}, Headers: p.Headers, Body: p.Body})
			require.NoError(t, err)
			require.True(t, m.Equals(got), "from %s to %T", name, to)
		}
	}
}

// watermill-amqp's marshaler fails on each of these headers, and the message used to be redelivered forever without
// reaching a handler.
func TestMarshaler_AcceptsEveryHeader(t *testing.T) {
	headers := amqp091.Table{
		"x-retry-count": int32(2), "x-death": []any{amqp091.Table{"count": int64(1)}}, "x-delivery-count": int64(3),
		"none": nil, "flag": true,
		"at": time.Unix(0, 0), "bytes": []byte("b"),
	}
	_, err := wamqp.DefaultMarshaler{}.Unmarshal(amqp091.Delivery{Headers: headers})
	require.Error(t, err)
	m, err := amqp.Marshaler{}.Unmarshal(amqp091.Delivery{
		Acknowledger: &amqp091.Channel{}, MessageId: "property",
		Headers: headers,
	})
	require.NoError(t, err)
	require.Equal(t, "property", m.UUID)
	require.Equal(t, message.Metadata{
		"x-retry-count": "2", "x-death": `[{"count":1}]`, "x-delivery-count": "3", "none": "", "flag": "true",
		"at": "1970-01-01T00:00:00Z", "bytes": "b",
	}, m.Metadata)
	p, err := amqp.Marshaler{}.Marshal(m)
	require.NoError(t, err)
	require.NotContains(t, p.Headers, "x-death", "the server would interpret it")
	require.NotContains(t, p.Headers, "x-delivery-count")
}

// The empty delivery of a deleted queue is not a message.
// Longer texts than AMQP's must not reach the client, which would close the connection.
func TestMarshaler_LongTexts(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 300)
	p, err := amqp.Marshaler{}.Marshal(message.NewMessage(long, nil))
	require.NoError(t, err)
	require.Empty(t, p.MessageId)
	back, err := amqp.Marshaler{}.Unmarshal(amqp091.Delivery{Acknowledger: &amqp091.Channel{}, Headers: p.Headers})
	require.NoError(t, err)
	require.Equal(t, long, back.UUID)
	m := message.NewMessage("1", nil)
	m.Metadata.Set(long, "x")
	_, err = amqp.Marshaler{}.Marshal(m)
	require.ErrorIs(t, err, brokers.ErrTooLarge)
}

func TestMarshaler_RefusesGhosts(t *testing.T) {
	_, err := amqp.Marshaler{}.Unmarshal(amqp091.Delivery{})
	require.Error(t, err)
}

// watermill-amqp would redeliver a message that its marshaler refuses forever, and pass an empty delivery to the
// handler.
func TestMarshaler_OfTheUserMayFail(t *testing.T) {
	refused := 0
	m := amqp.Tolerant(wamqp.DefaultMarshaler{}, func(*amqp091.Delivery, error) { refused++ })
	d := amqp091.Delivery{
		Acknowledger: &amqp091.Channel{}, Headers: amqp091.Table{"x-retry-count": int32(2)},
		Body: []byte("x"),
	}
	_, err := wamqp.DefaultMarshaler{}.Unmarshal(d)
	require.Error(t, err)
	got, err := m.Unmarshal(d)
	require.NoError(t, err)
	require.Equal(t, 1, refused)
	require.Equal(t, "x", string(got.Payload))
	require.Equal(t, "2", got.Metadata["x-retry-count"])
	_, err = wamqp.DefaultMarshaler{}.Unmarshal(amqp091.Delivery{})
	require.NoError(t, err, "to this marshaler an empty delivery is a message")
	_, err = m.Unmarshal(amqp091.Delivery{})
	require.Error(t, err)
}
