package middleware_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware"
)

// The pipeline reads the headers of the most frequent messages itself. The result must be that of envelope.ReadControl
// for every message.
func TestPipeline_ReadsLikeTheEnvelope(t *testing.T) {
	values := rapid.SampledFrom([]string{
		"", "0", "1", "00", "+1", "1.0", "id-1", "i d", "i\x00d", "ü", "-5", "10000",
		"abc", "1h", envelope.ContentType,
	})
	keys := rapid.SampledFrom([]string{
		envelope.KeyVersion, envelope.KeyMessageID, envelope.KeyRetryCount, envelope.KeyOriginalDelay,
		envelope.KeyWatermillDelayedFor,
		envelope.KeyRedriveID, envelope.KeyContentType, envelope.KeyAMQPMessageID, "foreign",
	})
	payloads := rapid.SampledFrom([]string{
		"", "raw",
		`{"message_id":"body","data":1,"version":"1.0","source":"","queue":"","timestamp":"","metadata":{},"error":null,"retry_count":3}`,
	})
	var got *middleware.Attempt
	p := benchPipeline(t, nil)
	h := p.Middleware(func(m *message.Message) ([]*message.Message, error) {
		a := mustAttempt(t, m.Context())
		got = &a
		return nil, nil
	})
	rapid.Check(t, func(rt *rapid.T) {
		m := message.NewMessage(values.Draw(rt, "uuid"), []byte(payloads.Draw(rt, "payload")))
		m.Metadata = rapid.MapOf(keys, values).Draw(rt, "headers")
		want, malformed := envelope.ReadControl(m)
		got = nil
		_, err := h(m)
		require.NoError(rt, err)
		if malformed != nil {
			require.Nil(rt, got)
			return
		}
		require.NotNil(rt, got)
		require.Equal(rt, want.RetryCount+1, got.Number)
		require.Equal(rt, want.RetryCountInvalid, got.Max == 1)
		require.Equal(rt, want.OriginalDelay, got.OriginalDelay)
		require.Equal(rt, want.RedriveID, got.RedriveID)
		if want.MessageID != "" {
			require.Equal(rt, want.MessageID, got.MessageID)
		}
	})
}
