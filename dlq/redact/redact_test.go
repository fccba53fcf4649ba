package redact_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redact"
)

func rules(t *testing.T, cfg redact.Config) *redact.Rules {
	t.Helper()
	r, err := redact.New(cfg)
	require.NoError(t, err)
	return r
}

// What a path names is replaced, whatever its type; every other byte stays.
func TestPayload_Paths(t *testing.T) {
	t.Parallel()
	const m = `"[redacted]"`
	for name, test := range map[string]struct{ path, payload, want string }{
		"member":              {"$.a", `{"a":1,"b":2}`, `{"a":` + m + `,"b":2}`},
		"nested":              {"$.a.b", `{ "a" : { "b" : [1,2] , "c":1.0} }`, `{ "a" : { "b" : ` + m + ` , "c":1.0} }`},
		"not deeper":          {"$.b", `{"a":{"b":1}}`, `{"a":{"b":1}}`},
		"any depth":           {"$..b", `{"a":{"b":1},"b":{"b":2},"c":[{"b":"x"}]}`, `{"a":{"b":` + m + `},"b":` + m + `,"c":[{"b":` + m + `}]}`},
		"below any depth":     {"$..a.b", `{"x":{"a":{"b":1,"c":2}}}`, `{"x":{"a":{"b":` + m + `,"c":2}}}`},
		"index":               {"$.a[1]", `{"a":[1,2,3]}`, `{"a":[1,` + m + `,3]}`},
		"every element":       {"$.a[*].s", `{"a":[{"s":1},{"t":2},{"s":{}}]}`, `{"a":[{"s":` + m + `},{"t":2},{"s":` + m + `}]}`},
		"every member":        {"$.a.*", `{"a":{"x":1,"y":null}}`, `{"a":{"x":` + m + `,"y":` + m + `}}`},
		"quoted":              {`$['a.b']["c d"]`, `{"a.b":{"c d":1}}`, `{"a.b":{"c d":` + m + `}}`},
		"everything":          {"$", ` [1,2] `, ` ` + m + ` `},
		"a name twice":        {"$.a", `{"a":1,"a":2}`, `{"a":` + m + `,"a":` + m + `}`},
		"escaped name":        {"$.cpf", `{"\u0063pf":"1"}`, `{"\u0063pf":` + m + `}`},
		"large numbers":       {"$.s", `{"n":123456789012345678901234567890,"s":1}`, `{"n":123456789012345678901234567890,"s":` + m + `}`},
		"index of an object":  {"$[0]", `{"0":1}`, `{"0":1}`},
		"nothing there":       {"$.x.y", `{"a":1}`, `{"a":1}`},
		"not JSON":            {"$.a", `cpf=1`, "[redacted]: 5 bytes that are not JSON (text/plain)"},
		"two values":          {"$.a", `{"a":1}{"a":2}`, "[redacted]: 14 bytes that are not JSON (text/plain)"},
		"cut off":             {"$.b", `{"a":1,"b":2`, "[redacted]: 12 bytes that are not JSON (text/plain)"},
		"nested without end":  {"$.b", strings.Repeat("[", 5000), "[redacted]: 5000 bytes that are not JSON (text/plain)"},
		"nested and complete": {"$.b", strings.Repeat("[", 5000) + strings.Repeat("]", 5000), "[redacted]: 10000 bytes that are not JSON (text/plain)"},
		"empty":               {"$.a", ``, ``},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := rules(t, redact.Config{Paths: []string{test.path}}).Payload("text/plain", []byte(test.payload))
			require.Equal(t, test.want, string(got))
		})
	}
}

// Whatever the document is: no value at the path is left, what comes out is JSON again, and without the path it is what went in.
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

// document draws a JSON text, in which "hush" stands nowhere but below a member named secret.
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
		for _, name := range rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "secret", "secrets"}), 0, 3).Draw(t, "names") {
			members = append(members, fmt.Sprintf("%q:%s", name, document(t, depth-1)))
		}
		return "{" + strings.Join(members, ", ") + "}"
	}
}

func TestHeadersAndTexts(t *testing.T) {
	t.Parallel()
	r := rules(t, redact.Config{Headers: []string{"Authorization", "x-api-*"}, Texts: []string{`\d{4}-\d{4}`}})
	given := map[string]string{"authorization": "s", "X-API-Key": "k", "x-api": "shown", "note": "card 1234-5678", "n": "1"}
	require.Equal(t, map[string]string{
		"authorization": "[redacted]", "X-API-Key": "[redacted]", "x-api": "shown", "note": "card [redacted]", "n": "1",
	}, r.Headers(given))
	require.Equal(t, "s", given["authorization"], "a copy")
	require.Equal(t, "[redacted] and [redacted]", r.Text("1234-5678 and 8765-4321"))
	require.JSONEq(t, `{"card":"[redacted]"}`, string(r.Payload("", []byte(`{"card":"1234-5678"}`))))
	require.Nil(t, r.Headers(nil))
}

// Nil rules hide nothing and fail nowhere.
func TestNilRules(t *testing.T) {
	t.Parallel()
	var r *redact.Rules
	require.True(t, r.Empty())
	e := &dlq.Entry{ErrorMessage: "x", Body: &dlq.Body{Payload: []byte("p"), Headers: map[string]string{"a": "b"}}}
	require.Equal(t, e, r.Entry(e))
	require.NotSame(t, e, r.Entry(e))
	require.Nil(t, r.Entry(nil))
	require.Equal(t, "t", r.Text("t"))
	require.Equal(t, "v", r.Header("h", "v"))
	require.Equal(t, []byte("p"), r.Payload("", []byte("p")))
	require.Equal(t, dlq.AuditRecord{Note: "n"}, r.Audit(dlq.AuditRecord{Note: "n"}))
}

// A difference shows what changed and not what is hidden, also when only that changed.
func TestDiff(t *testing.T) {
	t.Parallel()
	r := rules(t, redact.Config{Paths: []string{"$.cpf"}, Headers: []string{"auth"}})
	body := func(payload, auth string) *dlq.Body {
		return &dlq.Body{Payload: []byte(payload), Headers: map[string]string{"auth": auth, "tenant": "a"}}
	}
	d := r.Diff(body(`{"cpf":"111","total":1}`, "old"), body(`{"cpf":"222","total":2}`, "new"))
	require.NotRegexp(t, "111|222|old|new", d.String())
	require.Contains(t, d.String(), `+  "total": 2`)
	require.Contains(t, d.String(), "auth: [redacted]")
	d = r.Diff(body(`{"cpf":"111"}`, "x"), body(`{"cpf":"222"}`, "x"))
	require.True(t, d.PayloadChanged)
	require.Empty(t, d.Lines)
	added := r.Diff(&dlq.Body{}, body(``, "new"))
	require.NotContains(t, added.String(), "new")
}

// In the log, attributes are headers by their name, and texts and errors are free text.
func TestLogAttr(t *testing.T) {
	t.Parallel()
	r := rules(t, redact.Config{Headers: []string{"token"}, Texts: []string{`\d{4}-\d{4}`}})
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: r.LogAttr}))
	log.Info("card 1234-5678", "token", "abc", "error", errors.New("card 1234-5678"), "n", 7)
	require.NotContains(t, out.String(), "1234-5678")
	require.NotContains(t, out.String(), "abc")
	require.Contains(t, out.String(), "n=7")
	require.Contains(t, out.String(), "level=INFO")
}

func TestNew_NamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := redact.New(redact.Config{
		Paths: []string{"card", "$.", "$.a[", "$.a[x]", "$a"}, Headers: []string{"", "[a"}, Texts: []string{"(", "a*"},
	})
	for _, want := range []string{`"card"`, `"$."`, `"$.a["`, `"$.a[x]"`, `"$a"`, `header ""`, `header "[a"`, `text "("`, `text "a*"`} {
		require.ErrorContains(t, err, want)
	}
}
