package envelope_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

// identity is given to a foreign message without one, or with an empty one.
var identity = []string{
	envelope.KeyMessageID, envelope.KeyVersion, envelope.KeyTimestamp, envelope.KeySource, envelope.KeyQueue,
}

// checkInvariants checks what must hold for every message.
func checkInvariants(t *testing.T, m *message.Message) {
	t.Helper()
	payload, headers := bytes.Clone(m.Payload), m.Copy().Metadata
	unchanged := func() {
		require.Equal(t, payload, []byte(m.Payload), "reading does not change a message")
		require.Equal(t, headers, m.Metadata)
	}

	c, readErr := envelope.ReadControl(m)
	unchanged()
	require.GreaterOrEqual(t, c.OriginalDelay, time.Duration(0))
	require.LessOrEqual(t, c.OriginalDelay, envelope.MaxDelay)
	require.True(t, c.RetryCount >= 0 && c.RetryCount <= envelope.MaxRetryCount)
	require.False(t, c.RetryCountInvalid && c.RetryCount != 0)

	// An unchanged envelope renders the exact bytes, and adds at most a foreign message's identity.
	e, err := envelope.FromMessage(m)
	unchanged()
	require.Equal(t, readErr == nil, err == nil, "both readers agree on what is malformed")
	out := render(t, e)
	if e.Mode() == envelope.Binary || e.MessageID() != "uuid-1" { // a body without an id gets the message's
		require.Equal(t, payload, []byte(out.Payload))
	}
	for key, value := range headers {
		if value == "" && slices.Contains(identity, key) { // treated as absent
			continue
		}
		require.Equal(t, value, out.Metadata[key], key)
	}
	if c.MessageID != "" {
		require.Equal(t, c.MessageID, e.MessageID())
	}

	// A failure changes only its own fields.
	failed := envelope.RecordFailure(m, envelope.Failure{Err: envelope.Error{Message: "boom", Code: "500"}, Retry: 3})
	unchanged()
	after, afterErr := envelope.ReadControl(failed)
	require.Equal(t, readErr == nil, afterErr == nil)
	require.Equal(t, 3, after.RetryCount)
	require.Equal(t, c.Mode, after.Mode)
	if c.MessageID != "" {
		require.Equal(t, c.MessageID, after.MessageID)
	}
	for key, value := range headers {
		if !envelope.IsOurs(key) {
			require.Equal(t, value, failed.Metadata[key], key)
		}
	}
	if c.Mode == envelope.Binary {
		require.Equal(t, payload, []byte(failed.Payload))
		return
	}
	if readErr != nil {
		require.Equal(t, payload, []byte(failed.Payload))
		return
	}
	was, err := envelope.FromMessage(m)
	require.NoError(t, err)
	now, err := envelope.FromMessage(failed)
	require.NoError(t, err)
	require.Equal(t, &envelope.Error{Message: "boom", Code: "500"}, now.Err())
	require.Equal(t, was.Data(), now.Data())
	require.Equal(t, was.Metadata(), now.Metadata())
	require.Equal(t, was.Timestamp(), now.Timestamp())
	require.Equal(t, was.Queue(), now.Queue())
	if trimmed := bytes.TrimPrefix(payload, []byte("\xef\xbb\xbf")); json.Valid(trimmed) {
		require.True(t, json.Valid(bytes.TrimPrefix(failed.Payload, []byte("\xef\xbb\xbf"))))
	} else {
		t.Fatalf("read as an envelope, but encoding/json cannot: %q", payload)
	}
}

func FuzzBody(f *testing.F) {
	for _, body := range bodies {
		f.Add([]byte(body), false)
		f.Add([]byte(body[:len(body)*2/3]), true)
	}
	for _, seed := range []string{
		"", "{", `{"message_id":null,"data":1}`, "\xef\xbb\xbf{}", strings.Repeat("[", 20_000),
		`{"data":"` + "\x00",
	} {
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, payload []byte, declared bool) {
		m := message.NewMessage("uuid-1", payload)
		if declared {
			m.Metadata[envelope.KeyContentType] = envelope.ContentType
		}
		checkInvariants(t, m)
	})
}

// The headers come as lines of "key: value" so that the fuzzer can shuffle them.
func FuzzHeaders(f *testing.F) {
	for _, seed := range []string{
		"x-retry-count: -1\nx-original-delay: 1e99", "x-retry-count: 3\nx-message-id: id\nx-envelope-version: 1.0",
		"x-retry-count: 9223372036854775808", "_watermill_delayed_for: 10s", "_watermill_delayed_until: 2026-01-01T00:00:00Z",
		"x-death: []\nx-delivery-count: 4\ntenant: a", "x-first-failure: never\nx-deferred-since: 0",
		"x-error-message: a\\\\b\\n\\x0\nx-error-code: \\", "a: 5\n: 6",
		"content-type: " + envelope.ContentType, "x-envelope-version: \nx-source: ",
	} {
		f.Add(seed, []byte(envelopeBody(`1`, `{"a":1}`)))
		f.Add(seed, []byte("plain"))
	}
	f.Fuzz(func(t *testing.T, lines string, payload []byte) {
		m := message.NewMessage("uuid-1", payload)
		for line := range strings.SplitSeq(lines, "\n") {
			key, value, _ := strings.Cut(line, ": ")
			m.Metadata[key] = value
		}
		checkInvariants(t, m)
	})
}
