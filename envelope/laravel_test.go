package envelope_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

type laravelOrder struct {
	OrderID int `json:"order_id"`
}

// handled decodes a body as a handler does.
func handled(t *testing.T, body string) (laravelOrder, error) {
	t.Helper()
	var got laravelOrder
	err := envelope.Handle(func(_ context.Context, o laravelOrder) error { got = o; return nil })(message.NewMessage("",
		[]byte(body)))
	return got, err
}

// A producer may leave retry_count out of a new message: it is still an envelope, with its id.
func TestStructured_WithoutARetryCount(t *testing.T) {
	const body = `{"message_id":"m-1","timestamp":"2026-02-28T22:53:42+00:00","version":"1.0","source":"checkout","queue":"orders",` +
		`"data":{"order_id":77},"metadata":{"correlation_id":"abc-123"}}`
	got, err := handled(t, body)
	require.NoError(t, err)
	require.Equal(t, 77, got.OrderID)

	m := message.NewMessage("", []byte(body))
	require.Equal(t, "m-1", envelope.Identify(m))
	require.Equal(t, "abc-123", envelope.CorrelationID(m))
	failed := envelope.RecordFailure(m, envelope.Failure{Err: envelope.Error{Message: "boom"}, Retry: 1})
	e, err := envelope.FromMessage(failed)
	require.NoError(t, err)
	require.Equal(t, envelope.Structured, e.Mode())
	require.Equal(t, 1, e.RetryCount())
	require.Equal(t, "m-1", e.MessageID())
	require.Contains(t, string(failed.Payload), `"retry_count":1`)
}

// Laravel's own queue wraps jobs. Decoded without unwrapping, each of these would be order 0, without an error.
func TestData_LaravelJobs(t *testing.T) {
	const head = `{"uuid":"9b0c","displayName":"App\\Jobs\\ShipOrder","job":"Illuminate\\Queue\\CallQueuedHandler@call","maxTries":1,`
	_, err := handled(t, head+`"data":{"commandName":"App\\Jobs\\ShipOrder",`+
		`"command":"O:18:\"App\\Jobs\\ShipOrder\":1:{s:8:\"order_id\";i:77;}"}}`)
	var fault *envelope.DataError
	require.ErrorAs(t, err, &fault)
	require.ErrorIs(t, err, envelope.ErrMalformed)
	require.True(t, fault.Permanent())
	require.ErrorContains(t, err, `App\Jobs\ShipOrder`)
	require.ErrorContains(t, err, "serialized PHP object")

	got, err := handled(t, `{"displayName":"ShipOrder","job":"ShipOrder@handle","maxTries":null,"data":{"order_id":77},"attempts":0}`)
	require.NoError(t, err)
	require.Equal(t, 77, got.OrderID)

	for _, plain := range []string{
		`{"order_id":77,"displayName":"a person","job":"engineer","data":{"order_id":1}}`,
		`{"order_id":77,"displayName":"x","job":7,"data":{}}`,
		`{"order_id":77,"text":"\"displayName\" and \"job\""}`,
	} {
		got, err := handled(t, plain)
		require.NoError(t, err, plain)
		require.Equal(t, 77, got.OrderID, plain)
	}
}

// Metadata from Go has JSON's types in a body, also after a failure, and is their text in headers.
func TestMeta_AnyValue(t *testing.T) {
	create := func(mode envelope.Mode) *message.Message {
		e, err := envelope.New("shop", "orders", map[string]int{"order_id": 77}, map[string]string{"tenant": "acme"},
			envelope.Meta("priority", 5), envelope.Meta("express", true),
			envelope.Meta("path", []any{"a", map[string]any{"n": 1}}),
			envelope.Meta("note", "text"), envelope.InMode(mode))
		require.NoError(t, err)
		return render(t, e)
	}
	headers := create(envelope.Binary).Metadata
	require.Equal(t, []string{"true", "text", `["a",{"n":1}]`, "5", "acme"},
		[]string{headers["express"], headers["note"], headers["path"], headers["priority"], headers["tenant"]})
	const want = `"metadata":{"express":true,"note":"text","path":["a",{"n":1}],"priority":5,"tenant":"acme"}`
	m := create(envelope.Structured)
	require.Contains(t, string(m.Payload), want)
	failed := envelope.RecordFailure(m, envelope.Failure{Err: envelope.Error{Message: "boom"}, Retry: 1})
	require.Contains(t, string(failed.Payload), want)

	_, err := envelope.New("shop", "orders", 1, nil, envelope.Meta("channel", make(chan int)), envelope.Meta("x-queue", 1))
	require.ErrorContains(t, err, `"channel"`)
	require.ErrorContains(t, err, `"x-queue" belongs to the envelope`)
}
