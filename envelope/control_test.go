package envelope_test

import (
	"context"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

func withHeaders(md message.Metadata) *message.Message {
	m := message.NewMessage("uuid-1", []byte("payload"))
	m.Metadata = md
	return m
}

// The poison corpus: none of these may be treated as 0, or the message could loop forever.
func TestReadControl_RetryCountIsStrict(t *testing.T) {
	for _, text := range []string{
		"-1", "+3", " 3", "3 ", "1e99", "abc", "9223372036854775808", "18446744073709551616", "3.7", "NaN", "", "0x10",
		"1_000",
		"1000001", "٣", "\x00", "true", "null", strings.Repeat("9", 1<<16),
	} {
		t.Run(text[:min(len(text), 30)], func(t *testing.T) {
			c, err := envelope.ReadControl(withHeaders(message.Metadata{envelope.KeyRetryCount: text}))
			require.NoError(t, err)
			require.True(t, c.RetryCountInvalid)
			require.Zero(t, c.RetryCount)
		})
	}
	for text, want := range map[string]int{"0": 0, "1": 1, "007": 7, "1000000": envelope.MaxRetryCount} {
		c, err := envelope.ReadControl(withHeaders(message.Metadata{envelope.KeyRetryCount: text}))
		require.NoError(t, err)
		require.False(t, c.RetryCountInvalid, text)
		require.Equal(t, want, c.RetryCount)
	}
}

func TestReadControl_RetryCountInBody(t *testing.T) {
	for text, want := range map[string]struct {
		count   int
		invalid bool
	}{
		`0`: {}, `3`: {count: 3}, `"3"`: {count: 3}, `null`: {}, `-1`: {invalid: true}, `1e2`: {invalid: true},
		`3.0`:  {invalid: true},
		`1e99`: {invalid: true}, `1000001`: {invalid: true}, `"abc"`: {invalid: true}, `true`: {invalid: true},
		`[1]`: {invalid: true},
		`{}`:  {invalid: true}, `""`: {invalid: true}, `9223372036854775808`: {invalid: true},
	} {
		t.Run(text, func(t *testing.T) {
			body := strings.Replace(envelopeBody(`1`, `{}`), `"retry_count":0`, `"retry_count":`+text, 1)
			c, err := envelope.ReadControl(structuredMessage([]byte(body)))
			require.NoError(t, err)
			require.Equal(t, envelope.Structured, c.Mode)
			require.Equal(t, want.invalid, c.RetryCountInvalid)
			require.Equal(t, want.count, c.RetryCount)
		})
	}
}

// A stale counter on either side must not cause another retry.
func TestReadControl_LargerCounterCounts(t *testing.T) {
	body := strings.Replace(envelopeBody(`1`, `{}`), `"retry_count":0`, `"retry_count":2`, 1)
	for header, want := range map[string]int{"1": 2, "5": 5} {
		m := structuredMessage([]byte(body))
		m.Metadata[envelope.KeyRetryCount] = header
		c, err := envelope.ReadControl(m)
		require.NoError(t, err)
		require.Equal(t, want, c.RetryCount)
	}
	m := structuredMessage([]byte(body))
	m.Metadata[envelope.KeyRetryCount] = "abc"
	c, err := envelope.ReadControl(m)
	require.NoError(t, err)
	require.True(t, c.RetryCountInvalid)
}

func TestReadControl_DelayIsClampedAndReported(t *testing.T) {
	type want struct {
		delay   time.Duration
		clamped bool
	}
	for text, want := range map[string]want{
		"0": {}, "10000": {delay: 10 * time.Second}, "2592000000": {delay: envelope.MaxDelay},
		"2592000001": {envelope.MaxDelay, true}, strings.Repeat("9", 40): {envelope.MaxDelay, true},
		"-1": {0, true}, "1e3": {0, true}, "": {0, true}, "10s": {0, true}, "NaN": {0, true},
	} {
		c, err := envelope.ReadControl(withHeaders(message.Metadata{envelope.KeyOriginalDelay: text}))
		require.NoError(t, err)
		require.Equal(t, want.delay, c.OriginalDelay, text)
		require.Equal(t, want.clamped, c.Clamped, text)
	}
	for text, want := range map[string]want{
		"300ms": {delay: 300 * time.Millisecond}, "-5s": {0, true}, "9999h": {envelope.MaxDelay, true}, "soon": {0, true},
	} {
		c, err := envelope.ReadControl(withHeaders(message.Metadata{envelope.KeyWatermillDelayedFor: text}))
		require.NoError(t, err)
		require.Equal(t, want.delay, c.OriginalDelay, text)
		require.Equal(t, want.clamped, c.Clamped, text)
	}
}

// Bodies that claim to be an envelope and cannot be read.
func TestReadControl_Malformed(t *testing.T) {
	whole := envelopeBody(`{"a":1}`, `{}`)
	declared := message.Metadata{envelope.KeyContentType: envelope.ContentType}
	tests := map[string]struct {
		body     string
		headers  message.Metadata
		contains string
	}{
		"cut off in the data":        {body: envelopeBody(`{"a":1}`, `{}`)[:118], contains: "complete JSON object"},
		"cut off before the end":     {body: whole[:len(whole)-1], contains: "complete JSON object"},
		"bytes behind the end":       {body: whole + "x", contains: "complete JSON object"},
		"broken syntax in the data":  {body: envelopeBody(`{"a":01}`, `{}`), contains: "complete JSON object"},
		"brackets that do not match": {body: envelopeBody(`{"a":[1}`, `{}`), contains: "complete JSON object"},
		"a control character":        {body: envelopeBody("\"\n\"", `{}`), contains: "complete JSON object"},
		"too deep":                   {body: envelopeBody(strings.Repeat("[", 100_000), `{}`), contains: "10000 levels"},
		"id is a number": {
			body:     strings.Replace(whole, `"id-1"`, `1`, 1),
			contains: "message_id must be a string",
		},
		"queue is an object": {
			body:     strings.Replace(whole, `"orders"`, `{}`, 1),
			contains: "queue must be a string",
		},
		"metadata is a string": {body: envelopeBody(`1`, `"x"`), contains: "metadata must be an object"},
		"data and data_base64": {
			body:     strings.Replace(whole, `{`, `{"data_base64":"",`, 1),
			contains: "one of data and data_base64",
		},
		"data_base64 is a number": {
			body:     strings.Replace(envelopeBody(`1`, `{}`), `"data"`, `"data_base64"`, 1),
			contains: "must be a string",
		},
		"data_base64 is no base64": {
			body:     strings.Replace(envelopeBody(`"?"`, `{}`), `"data"`, `"data_base64"`, 1),
			contains: "illegal base64",
		},
		"declared, but empty":     {body: "", headers: declared, contains: "complete JSON object"},
		"declared, but an array":  {body: "[]", headers: declared, contains: "complete JSON object"},
		"declared, without an id": {body: `{"data":1}`, headers: declared, contains: "message_id is missing"},
		"declared by AMQP's property": {
			body:    "{",
			headers: message.Metadata{envelope.KeyAMQPContentType: envelope.ContentType}, contains: "complete",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := message.NewMessage("uuid-1", []byte(test.body))
			maps.Copy(m.Metadata, test.headers)
			m.Metadata[envelope.KeyRetryCount] = "2"
			c, err := envelope.ReadControl(m)
			require.ErrorIs(t, err, envelope.ErrMalformed)
			require.ErrorContains(t, err, test.contains)
			require.Equal(t, "uuid-1", c.MessageID, "the headers are still read")
			require.Equal(t, 2, c.RetryCount)

			e, err := envelope.FromMessage(m)
			require.ErrorIs(t, err, envelope.ErrMalformed)
			require.Equal(t, test.body, string(e.Data()), "the exact bytes are kept")

			failed := envelope.RecordFailure(m,
				envelope.Failure{Err: envelope.Error{Message: "malformed"}, Retry: 3, Reason: envelope.ReasonMalformed})
			require.Equal(t, test.body, string(failed.Payload))
			require.Equal(t, "3", failed.Metadata[envelope.KeyRetryCount])
			_, err = envelope.ReadControl(failed)
			require.ErrorIs(t, err, envelope.ErrMalformed, "it does not turn into an ordinary message")
			dead := envelope.DeadLetter{Message: failed}
			require.Equal(t, test.body, string(dead.Envelope().Data()))
		})
	}
}

// Payloads that resemble an envelope but are not one: the handler gets them unchanged.
func TestReadControl_OrdinaryPayloads(t *testing.T) {
	for _, payload := range []string{
		"", " ", "null", "{}", "[]", "{", "hello", "\x00\xff", `{"message_id":"1","queue":"q"}`,
		`{"message_id":"1","timestamp":"t","version":"1","source":"s","data":{},"retry_count":0}`,
		`{"message_id":"1","timestamp":"t","version":"1","source":"s","queue":"q","retry_count":0}`,
		`{"order":` + envelopeBody(`1`, `{}`) + `}`, `[` + envelopeBody(`1`, `{}`) + `]`,
		`"` + strings.ReplaceAll(envelopeBody(`1`, `{}`), `"`, `\"`) + `"`,
		`{"message_id":"1","queue":"q","broken":`, `{"text":"message_id\":\"queue\":"}`,
	} {
		m := message.NewMessage("uuid-1", []byte(payload))
		c, err := envelope.ReadControl(m)
		require.NoError(t, err, payload)
		require.Equal(t, envelope.Binary, c.Mode, payload)
		e, err := envelope.FromMessage(m)
		require.NoError(t, err)
		require.Equal(t, payload, string(e.Data()))
	}
}

// Data that is itself an envelope stays data, because a header marks the message as binary.
func TestReadControl_EnvelopeAsData(t *testing.T) {
	e, err := envelope.New("audit", "reports", []byte(envelopeBody(`1`, `{}`)), nil)
	require.NoError(t, err)
	m := e.Message()
	c, err := envelope.ReadControl(m)
	require.NoError(t, err)
	require.Equal(t, envelope.Binary, c.Mode)
	require.Equal(t, e.MessageID(), c.MessageID)
}

// A body of many megabytes in the worst shapes is read in linear time, otherwise this would miss its deadline by far.
func TestReadControl_HugeInput(t *testing.T) {
	const size = 4 << 20
	for name, body := range map[string]string{
		"brackets":     envelopeBody(strings.Repeat("[", size), `{}`),
		"open objects": envelopeBody(strings.Repeat(`{"a":`, size/5), `{}`),
		"backslashes":  envelopeBody(`"`+strings.Repeat(`\\`, size/2)+`"`, `{}`),
		"quotes":       envelopeBody(strings.Repeat(`"",`, size/3), `{}`),
		"members":      `{` + strings.Repeat(`"retry_count":1,`, size/16) + envelopeBody(`1`, `{}`)[1:],
		"escaped keys": `{` + strings.Repeat(`"\u0072etry_count":1,`, size/21) + envelopeBody(`1`, `{}`)[1:],
		"number":       envelopeBody(strings.Repeat("9", size), `{}`),
		"white space":  envelopeBody(strings.Repeat(" ", size)+"1", `{}`),
		"long id":      strings.Replace(envelopeBody(`1`, `{}`), "id-1", strings.Repeat("i", size), 1),
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = envelope.ReadControl(structuredMessage([]byte(body)))
			}()
			select {
			case <-done:
			case <-ctx.Done():
				t.Fatal("not linear")
			}
		})
	}
}

func TestReadControl_RedriveID(t *testing.T) {
	c, err := envelope.ReadControl(withHeaders(message.Metadata{envelope.KeyRedriveID: strconv.Itoa(7)}))
	require.NoError(t, err)
	require.Equal(t, "7", c.RedriveID)
}

func TestReadControl_MessageWithoutMetadata(t *testing.T) {
	c, err := envelope.ReadControl(&message.Message{})
	require.NoError(t, err)
	require.Equal(t, envelope.Control{}, c)
}
