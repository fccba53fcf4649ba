package envelope_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redrive-go/redrive/envelope"
)

// carry renders an envelope in a mode and reads it back, as on a trip through a broker to another process.
func carry(t require.TestingT, e envelope.Envelope, mode envelope.Mode) envelope.Envelope {
	m, err := e.WithMode(mode).Message()
	require.NoError(t, err)
	back, err := envelope.FromMessage(m)
	require.NoError(t, err)
	require.Equal(t, mode, back.Mode())
	return back
}

func render(t require.TestingT, e envelope.Envelope) *message.Message {
	m, err := e.Message()
	require.NoError(t, err)
	return m
}

// bodies are structured bodies whose spelling must survive a conversion to binary mode and back.
var bodies = map[string]string{
	"numbers that no float64 holds": envelopeBody(`{"id":9007199254740993,"big":1e400,"exact":1.10}`, `{}`),
	"white space everywhere": " \r\n\t" +
		strings.NewReplacer(",", " ,\n ", ":", " :  ").Replace(envelopeBody(`[1]`, `{"a":"b"}`)) + "\n\n",
	"metadata of every JSON type": envelopeBody(`1`,
		`{"priority":5,"tags":["a","b"],"vip":true,"none":null,"nested":{"k":1.0},"s":"5"}`),
	"metadata in another order": envelopeBody(`1`, `{"z":"1","a":"2","m":"3"}`),
	"metadata twice":            envelopeBody(`1`, `{"a":"1","a":"2"}`),
	"metadata under our names": envelopeBody(`1`,
		`{"x-retry-count":"99","x-message-id":"evil","x-meta-a":"1","content-type":"x","":"empty"}`),
	"metadata null":              envelopeBody(`1`, `null`),
	"metadata of PHP":            envelopeBody(`1`, `[]`),
	"metadata with broken UTF-8": envelopeBody(`1`, "{\"k\":\"\xff\",\"\xfe\":\"v\"}"),
	"lone surrogates":            envelopeBody(`"\ud800"`, `{"k":"\udfff"}`),
	"escaped characters":         envelopeBody(`"\u0041\/"`, `{"\u0061":"\u0062\/"}`),
	"unknown members":            strings.Replace(envelopeBody(`1`, `{}`), `{`, `{"tenant":{"id":7},"x":[],`, 1),
	"members twice": strings.Replace(envelopeBody(`1`, `{}`), `{`,
		`{"retry_count":7,"data":2,"error":{"code":"1"},`, 1),
	"another order of members":     `{"retry_count":2,"error":{"trace":"t","code":500,"x":1,"message":"m"},"data":{"a":1},"metadata":{},"queue":"q","source":"s","version":"1.0","timestamp":"2026-02-28T22:53:42Z","message_id":"id-1"}`,
	"a byte order mark":            "\xef\xbb\xbf" + envelopeBody(`1`, `{}`),
	"base64 data":                  strings.Replace(envelopeBody(`1`, `{}`), `"data":1`, `"data_base64":"AP8K"`, 1),
	"base64 with escapes":          strings.Replace(envelopeBody(`1`, `{}`), `"data":1`, `"data_base64":"\u0041P8K"`, 1),
	"control characters in fields": strings.Replace(envelopeBody(`1`, `{}`), `"orders"`, `"or\r\nders\u0000"`, 1),
	"a long queue name": strings.Replace(envelopeBody(`1`, `{}`), `"orders"`, `"`+strings.Repeat("ü", 300)+`"`,
		1),
	"a counter that is a string": strings.Replace(envelopeBody(`1`, `{}`), `"retry_count":0`, `"retry_count":"3"`, 1),
	"an invalid counter":         strings.Replace(envelopeBody(`1`, `{}`), `"retry_count":0`, `"retry_count":-1`, 1),
	"an error with a long trace": strings.Replace(envelopeBody(`1`, `{}`), `"error":null`,
		`"error":{"message":"m","code":"c","trace":"`+strings.Repeat("x", 5000)+`"}`, 1),
	"an error that is a string": strings.Replace(envelopeBody(`1`, `{}`), `"error":null`, `"error":"boom"`, 1),
	"data that is an envelope":  envelopeBody(envelopeBody(`1`, `{}`), `{}`),
}

func envelopeBody(data, metadata string) string {
	return `{"message_id":"id-1","timestamp":"2026-02-28T22:53:42+00:00","version":"1.0","source":"s","queue":"orders","data":` +
		data + `,"metadata":` + metadata + `,"error":null,"retry_count":0}`
}

func TestConvert_StructuredBinaryStructuredIsExact(t *testing.T) {
	headers := map[string]message.Metadata{
		"no headers": {},
		"ours":       {envelope.KeyContentType: envelope.ContentType, envelope.KeyOriginalDelay: "10000"},
		"AMQP's": {
			envelope.KeyAMQPContentType: envelope.ContentType + "; charset=utf-8", "tenant": "a",
			"a": "other", "s": "5",
		},
		"of another reign": {
			envelope.KeyRetryCount: "1", envelope.KeySource: "stale",
			envelope.KeyContentType: "application/json", "bin": "\xff",
		},
	}
	for bodyName, body := range bodies {
		for headerName, md := range headers {
			t.Run(bodyName+"/"+headerName, func(t *testing.T) {
				m := message.NewMessage("uuid", []byte(body))
				m.Metadata = md
				e, err := envelope.FromMessage(m)
				require.NoError(t, err)
				require.Equal(t, envelope.Structured, e.Mode())

				binary := carry(t, e, envelope.Binary)
				require.Equal(t, string(e.Data()), string(render(t, binary).Payload))
				require.Equal(t, e.MessageID(), binary.MessageID())
				require.Equal(t, e.RetryCount(), binary.RetryCount())

				back := render(t, carry(t, binary, envelope.Structured))
				require.Equal(t, body, string(back.Payload))
				require.Equal(t, md, back.Metadata)
			})
		}
	}
}

func TestConvert_BinaryStructuredBinaryIsExact(t *testing.T) {
	payloads := map[string]string{
		"JSON": `{"a": 1, "n": 9007199254740993}`, "JSON with a new line": "{\"a\":1}\n", "empty": "", "white space": "  ",
		"null": "null", "text": "hello", "bytes": "\x00\xff\r\n", "broken UTF-8 in JSON": "\"\xff\"", "broken JSON": `{"a":`,
		"an envelope": envelopeBody(`1`, `{}`), "deep": strings.Repeat("[", 9999) + strings.Repeat("]", 9999),
		"too deep": strings.Repeat("[", 10001) + strings.Repeat("]", 10001),
	}
	headers := map[string]message.Metadata{
		"none":  {},
		"plain": {"correlation_id": "abc", "tenant": "a", envelope.KeyContentType: "application/json"},
		"ours": {
			envelope.KeyRetryCount: "2", envelope.KeyErrorMessage: `a\nb`, envelope.KeyErrorCode: "500",
			envelope.KeyErrorTrace:   "t",
			envelope.KeyFirstFailure: "2026-01-01T00:00:00Z", envelope.KeyOriginalDelay: "5",
			envelope.KeyMetadataJSON: `["n", "gone"]`, "n": "5",
		},
		"odd": {
			envelope.KeyRetryCount: "007", envelope.KeySource: "\xff", "bin": "\xff\x00", "\xfe": "key", "": "empty",
			strings.Repeat("k", 300): "long", envelope.KeyMetadataJSON: "no list",
		},
		"an invalid counter": {envelope.KeyRetryCount: "abc", envelope.KeyErrorMessage: "m"},
		"an explicit zero":   {envelope.KeyRetryCount: "0", envelope.KeyErrorMessage: ""},
	}
	for payloadName, payload := range payloads {
		for headerName, md := range headers {
			t.Run(payloadName+"/"+headerName, func(t *testing.T) {
				m := message.NewMessage("uuid", []byte(payload))
				m.Metadata = md
				m.Metadata[envelope.KeyVersion] = envelope.LayoutVersion
				e, err := envelope.FromMessage(m)
				require.NoError(t, err)
				want := render(t, e)

				structured := carry(t, e, envelope.Structured)
				require.True(t, json.Valid(render(t, structured).Payload) || strings.HasPrefix(payload, "[["))
				require.Equal(t, payload, string(structured.Data()))

				back := render(t, carry(t, structured, envelope.Binary))
				require.Equal(t, payload, string(back.Payload))
				require.Equal(t, want.Metadata, back.Metadata)
			})
		}
	}
}

// A retry recorded in the other mode is in the body after the way back, and nothing else changes.
func TestConvert_FailureRecordedInBinaryMode(t *testing.T) {
	e, err := envelope.FromMessage(structuredMessage(golden(t, "a18_pretty_new.json")))
	require.NoError(t, err)
	binary, err := e.WithMode(envelope.Binary).Message()
	require.NoError(t, err)
	failed, err := envelope.RecordFailure(binary, envelope.Failure{
		Err: envelope.Error{
			Message: "Payment gateway timeout", Code: "500",
			Trace: "#0 OrderHandler.php(42): charge()\n#1 {main}",
		},
		Retry: 1,
	})
	require.NoError(t, err)
	back, err := envelope.FromMessage(failed)
	require.NoError(t, err)
	require.Equal(t, string(golden(t, "a18_pretty_failed.json")),
		string(render(t, back.WithMode(envelope.Structured)).Payload))
}

func TestConvert_MetadataTypesAreHeaders(t *testing.T) {
	e, err := envelope.FromMessage(structuredMessage(
		[]byte(envelopeBody(`1`, `{"name_of":"x","priority":5,"tags":["a"]}`))))
	require.NoError(t, err)
	m := render(t, e.WithMode(envelope.Binary))
	require.Equal(t, message.Metadata{
		envelope.KeyMessageID: "id-1", envelope.KeyTimestamp: "2026-02-28T22:53:42+00:00", envelope.KeyVersion: "1.0",
		envelope.KeySource: "s", envelope.KeyQueue: "orders", "name_of": "x", "priority": "5", "tags": `["a"]`,
		envelope.KeyMetadataJSON: `["priority","tags"]`,
		// The body was undeclared (no content type), which only a frame can restore.
		envelope.KeyFrame: m.Metadata[envelope.KeyFrame],
	}, m.Metadata)
}

// An envelope that does not fit into headers is refused with an explanation, not truncated.
func TestConvert_TooLargeForHeaders(t *testing.T) {
	body := strings.Replace(envelopeBody(`1`, `{}`), `{`, `{"note":"`+strings.Repeat("x", 20_000)+`",`, 1)
	e, err := envelope.FromMessage(structuredMessage([]byte(body)))
	require.NoError(t, err)
	_, err = e.WithMode(envelope.Binary).Message()
	require.ErrorIs(t, err, envelope.ErrNotConvertible)
	require.ErrorContains(t, err, "keep the structured mode")
	require.Equal(t, body, string(render(t, e).Payload))
}

// For any payload and metadata, both modes mean the same and the conversion back is exact.
func TestConvert_Property(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		payload := rapid.OneOf(rapid.SliceOf(rapid.Byte()),
			rapid.Map(jsonText(), func(s string) []byte { return []byte(s) })).Draw(t, "payload")
		metadata := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "metadata")
		for key := range metadata {
			if envelope.IsOurs(key) {
				delete(metadata, key)
			}
		}
		e, err := envelope.New("source", "queue", payload, metadata)
		require.NoError(t, err)
		for range rapid.IntRange(0, 2).Draw(t, "failures") {
			e = e.WithIncrementedRetry().WithError(envelope.Error{
				Message: rapid.String().Draw(t, "message"), Code: rapid.String().Draw(t, "code"),
				Trace: rapid.String().Draw(t, "trace"),
			})
		}
		want := render(t, e)

		structured := carry(t, e, envelope.Structured)
		require.Equal(t, e.Err(), structured.Err())
		require.Equal(t, e.RetryCount(), structured.RetryCount())
		require.Equal(t, payload, append([]byte{}, structured.Data()...))

		back := render(t, carry(t, structured, envelope.Binary))
		require.Equal(t, want.Metadata, back.Metadata)
		require.Equal(t, string(want.Payload), string(back.Payload))
	})
}

func jsonText() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			return rapid.SampledFrom([]string{"9007199254740993", "1e400", "-0.10", "null", "true"}).Draw(t, "scalar")
		case 1:
			b, _ := json.Marshal(rapid.String().Draw(t, "string"))
			return string(b)
		case 2:
			return "[" + strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"1", `"a"`, " {} "}), 0, 3).Draw(t, "items"),
				" , ") + "]"
		default:
			return `{"a":` + rapid.SampledFrom([]string{"1", `{"b":[]}`, `"\u0000"`}).Draw(t, "value") + ` , "a":2}`
		}
	})
}
