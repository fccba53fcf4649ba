package rabbitmq

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/envelope"
)

func roundTrip(headers amqp.Table) amqp.Table {
	metadata := message.Metadata{}
	headersToMetadata(headers, metadata)
	return metadataToHeaders(metadata, nil, skipHeader)
}

// A header of any type has the same type and value after a retry.
func TestHeaders_EveryTypeSurvives(t *testing.T) {
	headers := amqp.Table{
		"string": "text", "empty": "", "bytes": []byte{0, 0xff}, "true": true, "false": false, "nothing": nil,
		"int8": int8(-8), "uint8": uint8(200), "int16": int16(-16), "uint16": uint16(60000), "int32": int32(-32),
		"uint32": uint32(4e9), "int64": int64(math.MinInt64), "float32": float32(0.1), "float64": 0.1,
		"infinite": math.Inf(-1), "decimal": amqp.Decimal{Scale: 2, Value: -12345},
		"time": time.Unix(1_700_000_000, 0).UTC(), "far": time.Unix(1_700_000_000_000, 0).UTC(),
		"invalid \xff name": int32(1),
		"x-retry-count":     int32(3),
		"table": amqp.Table{
			"z": int64(9007199254740993), "a": "text", "raw": "\xff\xfe", "bytes": []byte("b"), "bad \xff key": true,
			"inner": amqp.Table{}, "list": []any{int8(1), "two", nil, []any{}, amqp.Table{"deep": float32(1.5)}},
			"nan free": math.Inf(1), "dec": amqp.Decimal{Scale: 255, Value: 1}, "at": time.Unix(0, 0).UTC(),
		},
		"list": []any{amqp.Table{"count": int64(2)}, uint16(1)},
	}
	require.Equal(t, headers, roundTrip(headers))
}

func TestHeaders_AreReadableAsText(t *testing.T) {
	metadata := message.Metadata{}
	headersToMetadata(amqp.Table{
		"x-retry-count": int64(2), "flag": true, "at": time.Unix(0, 0), "tags": []any{"a", int32(1)},
		"nested": amqp.Table{"k": amqp.Table{"n": int64(1)}},
	}, metadata)
	delete(metadata, envelope.KeyHeaderTypes)
	require.Equal(t, message.Metadata{
		"x-retry-count": "2", "flag": "true", "at": "1970-01-01T00:00:00Z", "tags": `["a",1]`, "nested": `{"k":{"n":1}}`,
	}, metadata)
}

func TestHeaders_ChangedByAHandler(t *testing.T) {
	for name, tc := range map[string]struct {
		was  any
		text string
		want any
	}{
		"a counter is incremented":        {int32(1), "2", int32(2)},
		"a counter outgrows its type":     {int32(1), "3000000000", int64(3000000000)},
		"no longer a number":              {int64(1), "many", "many"},
		"no longer a boolean":             {true, "yes", "yes"},
		"no longer a time":                {time.Unix(0, 0), "tomorrow", "tomorrow"},
		"a table of another shape":        {amqp.Table{"a": int32(1)}, `{"a":"1"}`, `{"a":"1"}`},
		"a table with another value":      {amqp.Table{"a": int32(1)}, `{"a":2}`, amqp.Table{"a": int32(2)}},
		"no longer a table":               {amqp.Table{"a": int32(1)}, `{`, `{`},
		"a table followed by other bytes": {amqp.Table{}, `{} {}`, `{} {}`},
		"a list that grew":                {[]any{int32(1)}, `[1,2]`, `[1,2]`},
		"bytes":                           {[]byte("a"), "b", []byte("b")},
	} {
		t.Run(name, func(t *testing.T) {
			metadata := message.Metadata{}
			headersToMetadata(amqp.Table{"h": tc.was}, metadata)
			metadata["h"] = tc.text
			require.Equal(t, tc.want, metadataToHeaders(metadata, nil, skipHeader)["h"])
		})
	}
}

// Headers that the broker sets are read but never published; nor are headers that would misroute a message, let it
// expire or be refused.
func TestHeaders_OfTheBrokerAreNotPublished(t *testing.T) {
	headers := roundTrip(amqp.Table{
		"x-death": []any{amqp.Table{"count": int64(1)}}, "x-first-death-queue": "q", "x-last-death-reason": "expired",
		"x-delivery-count": int64(4), "x-acquired-count": int64(4), "CC": []any{"payments"}, "BCC": []any{"payments"},
		"x-delay": int32(-500), "mine": "stays",
	})
	require.Equal(t, amqp.Table{"mine": "stays", envelope.KeyOriginalDelay: "500"}, headers)
}

func TestHeaders_SentAsIntegersWhereConsumersReadNumbers(t *testing.T) {
	headers := metadataToHeaders(message.Metadata{"x-retry-count": "2", "other": "2"}, []string{"x-retry-count"},
		skipHeader)
	require.Equal(t, amqp.Table{"x-retry-count": int32(2), "other": "2"}, headers)
}

func TestHeaders_ForeignTypes(t *testing.T) {
	headers := metadataToHeaders(message.Metadata{envelope.KeyHeaderTypes: "no JSON", "a": "1"}, nil, skipHeader)
	require.Equal(t, amqp.Table{"a": "1"}, headers)
	headers = metadataToHeaders(message.Metadata{
		envelope.KeyHeaderTypes: `{"a":"?","b":"","c":"{{","d":"ll"}`, "a": "1",
		"b": "2", "c": "{}", "d": "3",
	}, nil, skipHeader)
	require.Equal(t, amqp.Table{"a": "1", "b": "2", "c": "{}", "d": "3"}, headers)
}

// FuzzHeaders builds headers from bytes and requires that a round trip preserves them.
func FuzzHeaders(f *testing.F) {
	f.Add([]byte("some bytes for fields"), "name")
	f.Add([]byte{16, 3, 15, 17, 2, 1, 2, 3, 4, 5, 6, 7, 8}, "\xff")
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		if skipHeader(name) || name == envelope.KeyHeaderTypes {
			t.Skip()
		}
		headers := amqp.Table{name: fieldFrom(bytes.NewReader(data), name, 0)}
		require.Equal(t, headers, roundTrip(headers))
	})
}

// FuzzMetadata combines any text with any type: the publisher must not panic, and must publish a header.
func FuzzMetadata(f *testing.F) {
	f.Add("[1,2]", `{"h":"[ll]"}`)
	f.Add(`{"a":{}}`, `{"h":"{{}}"}`)
	f.Fuzz(func(t *testing.T, text, types string) {
		headers := metadataToHeaders(message.Metadata{"h": text, envelope.KeyHeaderTypes: types}, nil, skipHeader)
		require.Contains(t, headers, "h")
		require.NoError(t, headers.Validate())
	})
}

func fieldFrom(data *bytes.Reader, name string, depth int) any {
	kind, _ := data.ReadByte()
	next := func() int64 {
		var n int64
		for range 8 {
			b, _ := data.ReadByte()
			n = n<<8 | int64(b)
		}
		return n
	}
	text := func() string {
		n, _ := data.ReadByte()
		b := make([]byte, n%16)
		k, _ := data.Read(b)
		return string(b[:k])
	}
	switch kind % 18 {
	case 0:
		return nil
	case 1:
		return next()%2 == 0
	case 2:
		return int8(next())
	case 3:
		return uint8(next())
	case 4:
		return int16(next())
	case 5:
		return uint16(next())
	case 6:
		return int32(next())
	case 7:
		return uint32(next())
	case 8:
		return next()
	case 9:
		return float32(next())
	case 10:
		return float64(next()) / 3
	case 11:
		return amqp.Decimal{Scale: uint8(next()), Value: int32(next())}
	case 12:
		return time.Unix(next()%(1<<40), 0).UTC()
	case 13, 14:
		return text()
	case 15:
		return []byte(text())
	case 16:
		table := amqp.Table{}
		for i := range 3 {
			if depth < 5 && data.Len() > 0 {
				table[text()+name+string(rune('a'+i))] = fieldFrom(data, name, depth+1)
			}
		}
		return table
	}
	list := []any{}
	for depth < 5 && data.Len() > 0 && len(list) < 4 {
		list = append(list, fieldFrom(data, name, depth+1))
	}
	return list
}
