package redact_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/dlq/wire"
)

func rules(t *testing.T, cfg redact.Config) *redact.Rules {
	t.Helper()
	r, err := redact.New(cfg)
	require.NoError(t, err)
	return r
}

// A value at a path is replaced, whatever its type; every other byte stays.
func TestPayload_Paths(t *testing.T) {
	t.Parallel()
	const m = `"[redacted]"`
	for name, test := range map[string]struct{ path, payload, want string }{
		"member":     {"$.a", `{"a":1,"b":2}`, `{"a":` + m + `,"b":2}`},
		"nested":     {"$.a.b", `{ "a" : { "b" : [1,2] , "c":1.0} }`, `{ "a" : { "b" : ` + m + ` , "c":1.0} }`},
		"not deeper": {"$.b", `{"a":{"b":1}}`, `{"a":{"b":1}}`},
		"any depth": {
			"$..b", `{"a":{"b":1},"b":{"b":2},"c":[{"b":"x"}]}`,
			`{"a":{"b":` + m + `},"b":` + m + `,"c":[{"b":` + m + `}]}`,
		},
		"any depth, twice": {
			"$..a..b", `{"a":{"x":[{"b":1}],"b":2},"b":3}`,
			`{"a":{"x":[{"b":` + m + `}],"b":` + m + `},"b":3}`,
		},
		"any depth, once more":  {"$..a.a", `{"a":{"a":{"b":1}},"x":{"a":1}}`, `{"a":{"a":` + m + `},"x":{"a":1}}`},
		"any depth of anything": {"$..*..b.c", `{"b":{"c":1},"x":{"b":{"c":1}}}`, `{"b":{"c":1},"x":{"b":{"c":` + m + `}}}`},
		// Each way to match six of 400 levels would be more than anyone could try.
		"any depth, many times": {
			"$..a..a..a..a..a..a.b", strings.Repeat(`{"a":`, 400) + `{"c":1}` + strings.Repeat("}", 400),
			strings.Repeat(`{"a":`, 400) + `{"c":1}` + strings.Repeat("}", 400),
		},
		"below any depth": {"$..a.b", `{"x":{"a":{"b":1,"c":2}}}`, `{"x":{"a":{"b":` + m + `,"c":2}}}`},
		"index":           {"$.a[1]", `{"a":[1,2,3]}`, `{"a":[1,` + m + `,3]}`},
		"every element": {
			"$.a[*].s", `{"a":[{"s":1},{"t":2},{"s":{}}]}`,
			`{"a":[{"s":` + m + `},{"t":2},{"s":` + m + `}]}`,
		},
		"every member": {"$.a.*", `{"a":{"x":1,"y":null}}`, `{"a":{"x":` + m + `,"y":` + m + `}}`},
		"quoted":       {`$['a.b']["c d"]`, `{"a.b":{"c d":1}}`, `{"a.b":{"c d":` + m + `}}`},
		"everything":   {"$", ` [1,2] `, ` ` + m + ` `},
		"a name twice": {"$.a", `{"a":1,"a":2}`, `{"a":` + m + `,"a":` + m + `}`},
		"escaped name": {"$.cpf", `{"\u0063pf":"1"}`, `{"\u0063pf":` + m + `}`},
		"large numbers": {
			"$.s", `{"n":123456789012345678901234567890,"s":1}`,
			`{"n":123456789012345678901234567890,"s":` + m + `}`,
		},
		"index of an object": {"$[0]", `{"0":1}`, `{"0":1}`},
		"nothing there":      {"$.x.y", `{"a":1}`, `{"a":1}`},
		"not JSON":           {"$.a", `cpf=1`, "[redacted]: not JSON (text/plain)"},
		"two values":         {"$.a", `{"a":1}{"a":2}`, "[redacted]: not JSON (text/plain)"},
		"cut off":            {"$.b", `{"a":1,"b":2`, "[redacted]: not JSON (text/plain)"},
		"nested without end": {"$.b", strings.Repeat("[", 5000), "[redacted]: not JSON (text/plain)"},
		"nested and complete": {
			"$.b", strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
			"[redacted]: not JSON (text/plain)",
		},
		"empty": {"$.a", ``, ``},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := rules(t, redact.Config{Paths: []string{test.path}}).Payload("text/plain", []byte(test.payload))
			require.Equal(t, test.want, string(got))
		})
	}
}

// For any document: no value at the path is left, the result is JSON, and a document without the path is unchanged.
func TestPayload_Property(t *testing.T) {
	t.Parallel()
	r := rules(t, redact.Config{Paths: []string{"$..secret"}})
	rapid.Check(t, func(t *rapid.T) {
		payload := []byte(document(t, 4))
		before := bytes.Clone(payload)
		shown := r.Payload("application/json", payload)
		require.Equal(t, before, payload, "never changes what it is given")
		require.True(t, json.Valid(shown), "%s", shown)
		require.NotContains(t, string(shown), "hush")
		if !strings.Contains(string(payload), `"secret"`) {
			require.Equal(t, string(payload), string(shown))
		}
	})
}

// document draws a JSON text in which "hush" occurs only below a member named secret.
func document(t *rapid.T, depth int) string {
	kind := rapid.IntRange(0, 5).Draw(t, "kind")
	if depth == 0 {
		kind %= 3
	}
	switch kind {
	case 0:
		return strconv.Itoa(rapid.Int().Draw(t, "n"))
	case 1:
		return rapid.SampledFrom([]string{`""`, `"x"`, `"\u00e9\n"`, `null`, ` true `}).Draw(t, "scalar")
	case 2:
		return `{ "secret" : ["hush", {"deep": "hush"}] }`
	case 3:
		var items []string
		for range rapid.IntRange(0, 3).Draw(t, "items") {
			items = append(items, document(t, depth-1))
		}
		return "[" + strings.Join(items, " ,") + "]"
	default:
		var members []string
		for _, name := range rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "secret", "secrets"}), 0, 3).Draw(t,
			"names") {
			members = append(members, fmt.Sprintf("%q:%s", name, document(t, depth-1)))
		}
		return "{" + strings.Join(members, ", ") + "}"
	}
}

func TestHeadersAndTexts(t *testing.T) {
	t.Parallel()
	r := rules(t, redact.Config{Headers: []string{"Authorization", "x-api-*"}, Texts: []string{`\d{4}-\d{4}`}})
	given := map[string]string{
		"authorization": "s", "X-API-Key": "k", "x-api": "shown", "note": "card 1234-5678",
		"n": "1",
	}
	require.Equal(t, map[string]string{
		"authorization": "[redacted]", "X-API-Key": "[redacted]", "x-api": "shown", "note": "card [redacted]", "n": "1",
	}, r.Headers(given))
	require.Equal(t, "s", given["authorization"], "a copy")
	require.Equal(t, "[redacted] and [redacted]", r.Text("1234-5678 and 8765-4321"))
	require.JSONEq(t, `{"card":"[redacted]"}`, string(r.Payload("", []byte(`{"card":"1234-5678"}`))))
	require.Nil(t, r.Headers(nil))
}

// A star matches any characters of a name, slashes too.
func TestHeaders_Patterns(t *testing.T) {
	t.Parallel()
	for pattern, hidden := range map[string]string{
		"acme.io/*": "Acme.io/token", "*/token": "acme.io/v1/token", "acme.*": "acme.io/token", "*": "a/b", "a/b": "A/B",
		"a/[bc]?": "a/c/", `a\*/*`: "a*/b",
	} {
		r := rules(t, redact.Config{Headers: []string{pattern}})
		require.Equal(t, redact.Mask, r.Header(hidden, "s"), pattern)
		if pattern != "*" {
			require.Equal(t, "s", r.Header("acme-io", "s"), pattern)
		}
	}
}

// Patterns apply to decoded text: escapes of JSON, numbers, names of members, other encodings.
func TestPayload_PatternsMatchDecodedText(t *testing.T) {
	t.Parallel()
	r := rules(t, redact.Config{Texts: []string{`\w+@\w+`, `\d{11}`}})
	for name, test := range map[string]struct{ contentType, payload, want string }{
		"plain":            {"", `{"a":"ana@example"}`, `{"a":"[redacted]"}`},
		"escaped":          {"", `{"a":"ana\u0040example", "b" : 1}`, `{"a":"[redacted]", "b" : 1}`},
		"escaped letters":  {"", `["\u0061na\u0040example"]`, `["[redacted]"]`},
		"escaped twice":    {"", `{"inner":"{\"a\":\"ana\\u0040example\"}"}`, `{"inner":"{\"a\":\"[redacted]\"}"}`},
		"a number":         {"", `{"cpf": 11122233344 ,"n":1}`, `{"cpf": "[redacted]" ,"n":1}`},
		"a name":           {"", `{"ana\u0040example" : true}`, `{"[redacted]" : true}`},
		"not JSON":         {"text/plain", `mail ana@example`, `mail [redacted]`},
		"not JSON escaped": {"text/plain", `mail=ana\u0040example`, `mail=[redacted]`},
		"bytes":            {"text/plain", "ana@example\xff", "[redacted]: not text in UTF-8 (text/plain)"},
		"UTF-16":           {"text/plain", "a\x00n\x00a\x00@\x00e\x00", "[redacted]: not text in UTF-8 (text/plain)"},
		"UTF-7": {
			"text/plain; charset=utf-7", "ana+AEA-example",
			"[redacted]: not text in UTF-8 (text/plain; charset=utf-7)",
		},
		"a URL in JSON": {"", `{"to":"https:\/\/x?mail=ana%40example&n=1"}`, `{"to":"https://x?mail=[redacted]&n=1"}`},
		"a form":        {"application/x-www-form-urlencoded", `mail=ana%40example&n=1`, `mail=[redacted]&n=1`},
		"latin":         {"text/plain; charset=iso-8859-1", "ana@example", "[redacted]"},
		"nothing there": {"", `{"a":"b\u00e9","n":1.50}`, `{"a":"b\u00e9","n":1.50}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.want, string(r.Payload(test.contentType, []byte(test.payload))))
		})
	}
	require.Equal(t, "[redacted]", r.Text("ana\xff@example"))
	for text, want := range map[string]string{
		`mail ana\u0040example`: "mail [redacted]", `\ud83d ana\u0040example\u0021`: `\ud83d [redacted]\u0021`,
		`Get "https://bank/?mail=ana%40example&n=%2F": 404`: `Get "https://bank/?mail=[redacted]&n=%2F": 404`,
		"ana%2540example%25": "[redacted]%25", "%61n%61@ex%C3%A9": "[redacted]%C3%A9", "50% of ana%40x, 100%": "50% of [redacted], 100%",
		"%40%zz%": "%40%zz%", "ana@bob@carl%21": "[redacted]@carl%21", "%ff%fe ana%40x": "%ff%fe [redacted]",
	} {
		require.Equal(t, want, r.Text(text))
	}
}

// Every text of an entry is redacted, that of future columns included; nothing is left against which a guess could be
// checked.
func TestEntry_EveryText(t *testing.T) {
	t.Parallel()
	r := rules(t, redact.Config{Texts: []string{`\w+@\w+`}})
	var e wire.Entry
	for _, field := range reflect.ValueOf(&e).Elem().Fields() {
		if field.Type() == reflect.TypeFor[wire.Text]() {
			field.SetString("for ana@example")
		}
	}
	e.Key, e.MessageKey, e.Size, e.Fingerprint = []byte{1}, []byte("ana@example"), 7, "0123456789abcdef"
	text, err := json.Marshal(r.Detail(wire.EntryDetail{
		Entry: e,
		Body:  wire.Body{UUID: "ana@example", ContentType: "ana@example", StackTrace: "ana@example"},
	}))
	require.NoError(t, err)
	require.NotContains(t, string(text), "ana")
	require.NotContains(t, string(text), e.Fingerprint)
	require.NotContains(t, string(text), `"key"`)
	require.NotContains(t, string(text), `"size"`)
	g := r.Group(wire.Group{
		Fingerprint: e.Fingerprint, Cause: "for ana@example", Handler: "for ana@example",
		ErrorClass: "for ana@example",
	})
	require.Equal(t, r.Entry(e).Fingerprint, g.Fingerprint, "the entries are still those of the group")
}

// JSON is for people: what the patterns leave is written as it is.
func TestJSON(t *testing.T) {
	t.Parallel()
	rules, err := redact.New(redact.Config{Texts: []string{`\d{4}`}})
	require.NoError(t, err)
	shown, err := rules.JSON(map[string]string{"route": "<a> & b", "pin": "<1234>"})
	require.NoError(t, err)
	for _, text := range []string{`"<[redacted]>"`, `"<a> & b"`} {
		require.Contains(t, fmt.Sprintf("%s", shown), text)
	}
}

// Nil rules hide nothing and never fail.
func TestNilRules(t *testing.T) {
	t.Parallel()
	var r *redact.Rules
	require.True(t, r.Empty())
	e := wire.EntryDetail{
		Entry: wire.Entry{ErrorMessage: "x", Key: []byte{1}, Size: 1},
		Body:  wire.Body{Headers: wire.Headers{"a": "b"}},
	}
	e.Body.SetBytes([]byte("p"))
	require.Equal(t, e, r.Detail(e))
	require.Equal(t, "t", r.Text("t"))
	require.Equal(t, "v", r.Header("h", "v"))
	require.Equal(t, []byte("p"), r.Payload("", []byte("p")))
	require.Equal(t, wire.AuditRecord{Note: "n"}, r.Audit(wire.AuditRecord{Note: "n"}))
}

// In the log, an attribute is redacted like a header of its name, a map of headers by their names, and every other
// value by its text. A pipeline that logs payloads logs the headers as a map.
func TestLogAttr(t *testing.T) {
	t.Parallel()
	r := rules(t, redact.Config{Headers: []string{"token"}, Texts: []string{`\d{4}-\d{4}`}})
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: r.LogAttr}))
	log.Info("card 1234-5678", "token", "abc", "error", errors.New("card 1234-5678"), "n", 7,
		"headers", map[string]string{"token": "abc", "card": "1234-5678", "tenant": "acme"},
		"notes", []string{"card 1234-5678"}, "body", []byte("card 1234-5678"), "row", struct{ Card string }{"1234-5678"})
	require.NotContains(t, out.String(), "1234-5678")
	require.NotContains(t, out.String(), "abc")
	for _, shown := range []string{"n=7", "level=INFO", "tenant:acme"} {
		require.Contains(t, out.String(), shown)
	}

	out.Reset()
	type card struct{ Number string }
	log = slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{ReplaceAttr: r.LogAttr}))
	log.Info("paid", "order", struct{ Card *card }{&card{"1234-5678"}}, "n", []int{7})
	require.NotContains(t, out.String(), "1234-5678", "JSON shows what is behind a pointer")
	require.Contains(t, out.String(), `"n":[7]`)
}

func TestNew_NamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := redact.New(redact.Config{
		Paths: []string{"card", "$.", "$.a[", "$.a[x]", "$a"}, Headers: []string{"", "[a"}, Texts: []string{"(", "a*"},
	})
	for _, want := range []string{
		`"card"`, `"$."`, `"$.a["`, `"$.a[x]"`, `"$a"`, `header ""`, `header "[a"`, `text "("`,
		`text "a*"`,
	} {
		require.ErrorContains(t, err, want)
	}
}

// A field of an entry that is read from a hidden header is hidden with it, in entries and in what is searched for.
func TestEntry_FieldsFromHiddenHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		header string
		field  func(*wire.Entry) *wire.Text
		filter func(*wire.Filter) *string
	}{
		"EventID": {
			"x-message-id", func(e *wire.Entry) *wire.Text { return &e.EventID },
			func(f *wire.Filter) *string { return &f.EventID },
		},
		"EventType": {
			"CE_*", func(e *wire.Entry) *wire.Text { return &e.EventType },
			func(f *wire.Filter) *string { return &f.EventType },
		},
		"SourceTable": {
			"source_table", func(e *wire.Entry) *wire.Text { return &e.SourceTable },
			func(f *wire.Filter) *string { return &f.SourceTable },
		},
		"SourceID": {
			"source_*", func(e *wire.Entry) *wire.Text { return &e.SourceID },
			func(f *wire.Filter) *string { return &f.SourceID },
		},
		"CorrelationID": {
			"amqp-correlation-id", func(e *wire.Entry) *wire.Text { return &e.CorrelationID },
			func(f *wire.Filter) *string { return &f.CorrelationID },
		},
	} {
		t.Run(name, func(t *testing.T) {
			rules, err := redact.New(redact.Config{Headers: []string{c.header}})
			require.NoError(t, err)
			e := wire.Entry{EventID: "42", EventType: "42", SourceTable: "42", SourceID: "42", CorrelationID: "42", Topic: "42"}
			want := e
			*c.field(&want) = redact.Mask
			shown := rules.Entry(e)
			if c.header == "source_*" {
				want.SourceTable = redact.Mask
			}
			require.Equal(t, want, shown)
			var spec wire.RunSpec
			*c.filter(&spec.Filter) = "42"
			require.Equal(t, redact.Mask, *c.filter(new(rules.Spec(spec).Filter)))
			empty := rules.Entry(wire.Entry{})
			require.Empty(t, *c.field(&empty))
		})
	}
}

// What a hidden header has is nowhere else: in no other field, not in base64, and not in the audit log.
func TestDetail_HiddenHeadersElsewhere(t *testing.T) {
	t.Parallel()
	r := rules(t, redact.Config{Headers: []string{"x-message-id", "X-Kafka-Key", "x-exchange", "content-type"}})
	shown := r.Detail(wire.EntryDetail{
		Entry: wire.Entry{EventID: "42", MessageKey: []byte("42"), Exchange: "42", Topic: "orders"},
		Body:  wire.Body{UUID: "42", ContentType: "42"},
	})
	require.Equal(t, wire.Entry{
		EventID: redact.Mask, MessageKey: []byte(redact.Mask), Exchange: redact.Mask, Topic: "orders",
	}, shown.Entry)
	require.Equal(t, []wire.Text{redact.Mask, redact.Mask}, []wire.Text{shown.Body.UUID, shown.Body.ContentType})
	require.Empty(t, r.Entry(wire.Entry{}).MessageKey)
	typed := rules(t, redact.Config{Headers: []string{"amqp-content-type"}})
	require.Equal(t, wire.Text(redact.Mask), typed.Detail(wire.EntryDetail{Body: wire.Body{ContentType: "42"}}).Body.ContentType)
	audit := r.Audit(wire.AuditRecord{Detail: map[string]string{"event_id": "42", "revision": "3"}})
	require.Equal(t, map[string]string{"event_id": redact.Mask, "revision": "3"}, audit.Detail)
}
