package envelope_test

import (
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

func golden(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	return b
}

func structuredMessage(body []byte) *message.Message {
	m := message.NewMessage("", body)
	return m
}

// newOrder returns the documented new message, made with the factory.
func newOrder(t *testing.T, opts ...envelope.Option) envelope.Envelope {
	t.Helper()
	data := []byte(`{"order_id":1234,"total":99.9,"items":[{"sku":"A-1","quantity":2}]}`)
	metadata := map[string]string{"correlation_id": "abc-123", "priority": "high"}
	e, err := envelope.New("checkout-api", "orders", data, metadata, append([]envelope.Option{
		envelope.ID("550e8400-e29b-41d4-a716-446655440000"),
		envelope.CreatedAt(time.Date(2026, 2, 28, 22, 53, 42, 0, time.UTC)),
	}, opts...)...)
	require.NoError(t, err)
	return e
}

// The rendered body is the sample, member by member and in its order.
func TestGolden_NewMessage(t *testing.T) {
	m := newOrder(t, envelope.InMode(envelope.Structured)).Message()
	require.Equal(t, string(golden(t, "a18_new.json")), string(m.Payload))
	require.Equal(t, message.Metadata{envelope.KeyContentType: envelope.ContentType}, m.Metadata)
}

// After the first failure the body is identical except for error and retry_count.
func TestGolden_FirstFailure(t *testing.T) {
	failure := envelope.Failure{
		Err: envelope.Error{
			Message: "Payment gateway timeout", Code: "500",
			Trace: "#0 OrderHandler.php(42): charge()\n#1 {main}",
		},
		Retry: 1,
	}
	for _, form := range []string{"a18", "a18_pretty"} {
		t.Run(form, func(t *testing.T) {
			fresh := structuredMessage(golden(t, form+"_new.json"))
			failed := envelope.RecordFailure(fresh, failure)
			require.Equal(t, string(golden(t, form+"_failed.json")), string(failed.Payload))
			require.Equal(t, string(golden(t, form+"_new.json")), string(fresh.Payload), "the original is not touched")
		})
	}
}

// The value's own methods give the same golden body, and do not change their receiver.
func TestGolden_WithMethods(t *testing.T) {
	fresh, err := envelope.FromMessage(structuredMessage(golden(t, "a18_new.json")))
	require.NoError(t, err)
	failed := fresh.WithIncrementedRetry().WithError(envelope.Error{
		Message: "Payment gateway timeout", Code: "500", Trace: "#0 OrderHandler.php(42): charge()\n#1 {main}",
	})

	m := failed.Message()
	require.Equal(t, string(golden(t, "a18_failed.json")), string(m.Payload))
	require.Nil(t, fresh.Err())
	require.Zero(t, fresh.RetryCount())
}

func TestGolden_Accessors(t *testing.T) {
	e, err := envelope.FromMessage(structuredMessage(golden(t, "a18_pretty_failed.json")))
	require.NoError(t, err)
	require.Equal(t, envelope.Structured, e.Mode())
	require.Equal(t, "550e8400-e29b-41d4-a716-446655440000", e.MessageID())
	require.Equal(t, "2026-02-28T22:53:42+00:00", e.Timestamp().Format("2006-01-02T15:04:05-07:00"))
	require.Equal(t, "1.0", e.Version())
	require.Equal(t, "checkout-api", e.Source())
	require.Equal(t, "orders", e.Queue())
	require.JSONEq(t, `{"order_id":1234,"total":99.90,"items":[{"sku":"A-1","quantity":2}]}`, string(e.Data()))
	require.Equal(t, map[string]string{"correlation_id": "abc-123", "priority": "high"}, e.Metadata())
	require.Equal(t, "abc-123", e.CorrelationID())
	require.Equal(t, &envelope.Error{
		Message: "Payment gateway timeout", Code: "500", Trace: "#0 OrderHandler.php(42): charge()\n#1 {main}",
	}, e.Err())
	require.Equal(t, 1, e.RetryCount())
	require.Equal(t, 2, e.Attempt())
}

// A correlation id that is null is none, and not the text "null".
func TestStructured_CorrelationIDIsNull(t *testing.T) {
	m := structuredMessage([]byte(`{"message_id":"550e8400-e29b-41d4-a716-446655440000","timestamp":"2026-02-28T22:53:42+00:00",` +
		`"version":"1.0","source":"s",` +
		`"queue":"orders","data":{},"metadata":{"correlation_id":null},"error":null,"retry_count":0}`))
	e, err := envelope.FromMessage(m)
	require.NoError(t, err)
	require.Equal(t, envelope.Structured, e.Mode())
	require.Empty(t, e.CorrelationID())
	require.Empty(t, envelope.CorrelationID(m))
}
