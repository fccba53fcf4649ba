package envelope_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redrive-go/redrive/envelope"
)

// carry converts an envelope and reads it back from its message, as on a trip through a broker to another process.
func carry(t require.TestingT, e envelope.Envelope, mode envelope.Mode) envelope.Envelope {
	converted, err := e.WithMode(mode)
	require.NoError(t, err)
	back, err := envelope.FromMessage(converted.Message())
	require.NoError(t, err)
	require.Equal(t, mode, back.Mode())
	return back
}

func requireSame(t require.TestingT, want, got envelope.Envelope) {
	require.Equal(t, want.MessageID(), got.MessageID())
	require.Equal(t, want.Timestamp(), got.Timestamp())
	require.Equal(t, want.Source(), got.Source())
	require.Equal(t, want.Queue(), got.Queue())
	require.Equal(t, string(want.Data()), string(got.Data()))
	require.Equal(t, want.DataContentType(), got.DataContentType())
	require.Equal(t, want.Err(), got.Err())
	require.Equal(t, want.RetryCount(), got.RetryCount())
	require.Equal(t, want.OriginalDelay(), got.OriginalDelay())
	require.Equal(t, want.Event(), got.Event())
	require.Equal(t, want.CorrelationID(), got.CorrelationID())
}

func TestWithMode_StructuredBinaryStructured(t *testing.T) {
	refused := []string{
		"unknown members", "metadata under our names", "control characters in fields", "a long queue name",
		"an invalid counter", "an error with a long trace",
	}
	for name, body := range bodies {
		t.Run(name, func(t *testing.T) {
			m := message.NewMessage("uuid", []byte(body))
			m.Metadata = message.Metadata{
				envelope.KeyContentType: envelope.ContentType, envelope.KeyOriginalDelay: "10000", envelope.KeyRetryCount: "1",
				"tenant": "of the headers", "bin": "\xff",
			}
			if len(body)%2 == 0 { // a producer that does not know this package
				m.Metadata[envelope.KeyContentType] = "application/json"
			}
			e, err := envelope.FromMessage(m)
			require.NoError(t, err)
			if slices.Contains(refused, name) {
				_, err := e.WithMode(envelope.Binary)
				require.ErrorIs(t, err, envelope.ErrNotConvertible)
				return
			}
			binary := carry(t, e, envelope.Binary)
			requireSame(t, e, binary)
			require.Equal(t, string(e.Data()), string(binary.Message().Payload))

			back := carry(t, binary, envelope.Structured)
			requireSame(t, e, back)
			require.Equal(t, e.Metadata(), back.Metadata())
			require.Equal(t, "of the headers", back.Message().Metadata["tenant"], "not moved into the body")
			require.Equal(t, back, carry(t, carry(t, back, envelope.Binary), envelope.Structured))
		})
	}
}

func TestWithMode_BinaryStructuredBinary(t *testing.T) {
	payloads := []string{
		`{"a": 1, "n": 9007199254740993}`, "{\"a\":1}\n", "", "  ", "null", "hello", "\x00\xff\r\n", "\"\xff\"", `{"a":`,
		envelopeBody(`1`, `{}`), strings.Repeat("[", 9999) + strings.Repeat("]", 9999),
		strings.Repeat("[", 10001) + strings.Repeat("]", 10001),
	}
	headers := map[string]message.Metadata{
		"none":  {},
		"plain": {"correlation_id": "abc", "tenant": "a", envelope.KeyContentType: "application/json", "": "empty"},
		"ours": {
			envelope.KeyRetryCount: "2", envelope.KeyErrorMessage: `a\nb`, envelope.KeyErrorCode: "500",
			envelope.KeyErrorTrace: "t", envelope.KeyFirstFailure: "2026-01-01T00:00:00Z", envelope.KeyOriginalDelay: "5",
			envelope.KeyAMQPContentType: "text/plain", envelope.KeyTraceParent: "00-1-2-01",
		},
		"data declared as an envelope": {envelope.KeyContentType: envelope.ContentType},
		"a form that was tampered with": {
			envelope.KeyBodyForm: `{"json":["n","gone"]}`, "n": `1},"retry_count":9,"metadata":{"n":1`,
		},
	}
	for name, md := range headers {
		t.Run(name, func(t *testing.T) {
			for _, payload := range payloads {
				m := message.NewMessage("uuid", []byte(payload))
				m.Metadata = md
				m.Metadata[envelope.KeyVersion] = envelope.LayoutVersion
				e, err := envelope.FromMessage(m)
				require.NoError(t, err)
				structured := carry(t, e, envelope.Structured)
				requireSame(t, e, structured)
				back := carry(t, structured, envelope.Binary).Message()
				require.Equal(t, payload, string(back.Payload))
				want := e.Message().Metadata
				delete(want, envelope.KeyBodyForm) // the text that it names is no JSON, so it is not used
				require.Equal(t, want, back.Metadata)
			}
		})
	}
	for key, value := range map[string]string{envelope.KeyRetryCount: "abc", "bin": "\xff", "\xff": "v", envelope.KeySource: "\xff"} {
		m := message.NewMessage("uuid", nil)
		m.Metadata = message.Metadata{envelope.KeyVersion: envelope.LayoutVersion, key: value}
		e, err := envelope.FromMessage(m)
		require.NoError(t, err)
		_, err = e.WithMode(envelope.Structured)
		require.ErrorIs(t, err, envelope.ErrNotConvertible, key)
	}
}

// A conversion there and back loses nothing, whatever the data and the metadata are, and a failure recorded in between
// stays recorded.
func TestWithMode_Property(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		payload := rapid.OneOf(rapid.SliceOf(rapid.Byte()),
			rapid.Map(jsonText(), func(s string) []byte { return []byte(s) })).Draw(t, "payload")
		metadata := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "metadata")
		for key := range metadata {
			if envelope.IsOurs(key) {
				delete(metadata, key)
			}
		}
		mode := rapid.SampledFrom([]envelope.Mode{envelope.Binary, envelope.Structured}).Draw(t, "mode")
		e, err := envelope.New("source", "queue", payload, metadata, envelope.InMode(mode),
			envelope.Meta("priority", rapid.SampledFrom([]any{5, true, nil, []int{1}, "text"}).Draw(t, "priority")))
		require.NoError(t, err)

		there := carry(t, e, 1-mode)
		requireSame(t, e, there)
		want, got := e.Message(), carry(t, there, mode).Message()
		require.Equal(t, string(want.Payload), string(got.Payload))
		require.Equal(t, want.Metadata, got.Metadata)

		failure := envelope.Error{Message: rapid.String().Draw(t, "message"), Code: rapid.String().Draw(t, "code")}
		failed, err := envelope.FromMessage(envelope.RecordFailure(there.Message(), envelope.Failure{Err: failure, Retry: 1}))
		require.NoError(t, err)
		back := carry(t, failed, mode)
		require.Equal(t, 1, back.RetryCount())
		require.Equal(t, &failure, back.Err())
		require.Equal(t, e.Metadata(), back.Metadata())
		require.Equal(t, e.Data(), back.Data())
	})
}

// A conversion is either exact or refused, never silently wrong.
func FuzzWithMode(f *testing.F) {
	for _, body := range bodies {
		f.Add("tenant: a\nx-retry-count: 2", []byte(body))
	}
	f.Add("x-envelope-version: 1\nx-body-form: {\"json\":[\"a\"]}\na: 5,", []byte("\xff"))
	f.Fuzz(func(t *testing.T, lines string, payload []byte) {
		m := message.NewMessage("uuid-1", payload)
		for line := range strings.SplitSeq(lines, "\n") {
			key, value, _ := strings.Cut(line, ": ")
			m.Metadata[key] = value
		}
		e, err := envelope.FromMessage(m)
		if err != nil {
			return
		}
		other := 1 - e.Mode()
		if _, err := e.WithMode(other); err != nil {
			require.ErrorIs(t, err, envelope.ErrNotConvertible)
			return
		}
		there := carry(t, e, other)
		requireSame(t, e, there)
		back := carry(t, there, e.Mode())
		requireSame(t, e, back)
		require.Equal(t, e.Metadata(), back.Metadata())
	})
}
