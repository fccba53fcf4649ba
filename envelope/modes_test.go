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

func render(_ require.TestingT, e envelope.Envelope) *message.Message {
	return e.Message()
}

// bodies are structured bodies whose spelling must survive.
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

// A body is rendered as it was read, and a failure changes error and retry_count in it and nothing else.
func TestStructured_SpellingIsKept(t *testing.T) {
	for name, body := range bodies {
		t.Run(name, func(t *testing.T) {
			m := message.NewMessage("uuid", []byte(body))
			e, err := envelope.FromMessage(m)
			require.NoError(t, err)
			require.Equal(t, envelope.Structured, e.Mode())
			require.Equal(t, body, string(render(t, e).Payload))

			failed, err := envelope.FromMessage(envelope.RecordFailure(m,
				envelope.Failure{Err: envelope.Error{Message: "boom"}, Retry: 3}))
			require.NoError(t, err)
			require.Equal(t, 3, failed.RetryCount())
			require.Equal(t, e.Data(), failed.Data())
			require.Equal(t, e.Metadata(), failed.Metadata())
			require.Equal(t, e.Queue(), failed.Queue())
		})
	}
}

// For any payload and metadata, both modes mean the same.
func TestNew_BothModesMeanTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		payload := rapid.OneOf(rapid.SliceOf(rapid.Byte()),
			rapid.Map(jsonText(), func(s string) []byte { return []byte(s) })).Draw(t, "payload")
		metadata := rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "metadata")
		for key := range metadata {
			if envelope.IsOurs(key) && key != envelope.KeyCorrelationID {
				delete(metadata, key)
			}
		}
		failures := rapid.IntRange(0, 2).Draw(t, "failures")
		failure := envelope.Error{
			Message: rapid.String().Draw(t, "message"), Code: rapid.String().Draw(t, "code"),
			Trace: rapid.String().Draw(t, "trace"),
		}
		for _, mode := range []envelope.Mode{envelope.Binary, envelope.Structured} {
			e, err := envelope.New("source", "queue", payload, metadata, envelope.ID("id-1"), envelope.InMode(mode))
			require.NoError(t, err)
			for range failures {
				e = e.WithIncrementedRetry().WithError(failure)
			}
			back, err := envelope.FromMessage(render(t, e))
			require.NoError(t, err)
			require.Equal(t, mode, back.Mode())
			require.Equal(t, "id-1", back.MessageID())
			require.Equal(t, "queue", back.Queue())
			require.Equal(t, payload, append([]byte{}, back.Data()...))
			require.Equal(t, metadata, back.Metadata())
			require.Equal(t, failures, back.RetryCount())
			if failures > 0 {
				require.Equal(t, &failure, back.Err())
			}
		}
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
