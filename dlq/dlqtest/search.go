package dlqtest

import (
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/wire"
)

// A filter on a field of the JSON payload selects the letters that have the value there, including in arrays, and with
// the right type. It never selects a payload that is not JSON, is truncated or only looks similar.
func (w *world) TestPayloadFields() {
	payloads := map[string]string{
		"number":   `{"customer":{"id":42,"name":"Ana \"A\" Silva"},"items":[{"sku":"A-7","tags":["new","x"]},{"sku":"B-1"}],"total":10.50,"paid":true,"code":null}`,
		"text":     `{"customer":{"id":"42","name":"ana"},"items":[],"total":"10.5","paid":"true","code":"null"}`,
		"other":    `{"customer":{"id":421,"name":"4\u00e9"},"items":{"sku":"A-70"},"total":1050,"paid":false}`,
		"shape":    `{"customer":[{"id":7},{"id":43}],"id":42,"items":"A-7","a.b":{"c d":1},"$x":"=y"}`,
		"deeper":   `{"order":{"customer":{"id":42}}}`,
		"list":     `[{"customer":{"id":44}},{"customer":{"id":45}}]`,
		"scalar":   `"customer"`,
		"cut off":  `{"customer":{"id":42}`,
		"binary":   "\xff\x00{\"customer\":{\"id\":42}}",
		"empty":    "",
		"long":     `{"customer":{"id":46},"rest":"` + strings.Repeat("x", 100_000) + `"}`,
		"negative": `{"balance":-1.5e2,"big":9007199254740993}`,
		"php":      `{"path":"\/srv\/caf\u00e9","face":"\ud83d\ude00"}`,
		"python":   `{"path":"/srv/caf\u00e9","face":"\ud83d\ude00"}`,
		"go":       `{"path":"/srv/café","face":"😀","html":"\u003cb\u003e"}`,
		"java":     `{"path":"/srv/café","face":"😀","html":"<b>"}`,
	}
	// Payloads that databases refuse as JSON are also in the store, and must not make a search fail.
	for name, p := range Payloads() {
		if len(p) < 1<<20 {
			payloads["hostile: "+name] = string(p)
		}
	}
	n := 1
	id := map[string]int64{}
	for name, text := range payloads {
		n++
		id[name] = w.put(letter(n, payload(text)))[0].ID
	}
	for text, want := range map[string][]string{
		"customer.id=42":                  {"number", "text"},
		`customer.id="42"`:                {"text"},
		"customer.id=42.0":                {"number"}, // as a number, as no text is 42.0
		"customer.id=4":                   nil,
		"customer.id=43":                  {"shape"},
		"customer.id=45":                  {"list"},
		"customer.id=46":                  {"long"},
		"id=42":                           {"shape"},
		`customer.name="Ana \"A\" Silva"`: {"number"},
		`customer.name=Ana "A" Silva`:     {"number"},
		"customer.name=Ana":               nil,
		"customer.name=ANA":               nil,
		"customer.name=4é":                {"other"},
		"customer.name='; DROP TABLE x":   nil,
		"customer={}":                     nil,
		"items.sku=A-7":                   {"number"},
		"items.tags=x":                    {"number"},
		"items.sku=A-70":                  {"other"},
		"items=A-7":                       {"shape"},
		"items.sku.none=1":                nil,
		"total=10.5":                      {"number", "text"},
		"paid=true":                       {"number", "text"},
		`paid="true"`:                     {"text"},
		"paid=false":                      {"other"},
		"paid=1":                          nil,
		"code=null":                       {"number", "text"},
		"missing=null":                    nil,
		`"a.b".c d=1`:                     {"shape"},
		`"$x"="=y"`:                       {"shape"},
		"balance=-150":                    {"negative"},
		"big=9007199254740993":            {"negative"},
		"path=/srv/café":                  {"php", "python", "go", "java"},
		"face=😀":                          {"php", "python", "go", "java"},
		"html=<b>":                        {"go", "java"},
	} {
		field, err := wire.ParsePayloadField(text)
		require.NoError(w, err, text)
		var wanted []int64
		for _, name := range want {
			wanted = append(wanted, id[name])
		}
		f := dlq.Filter{PayloadFields: []wire.PayloadField{field}}
		require.ElementsMatch(w, wanted, ids(w.all(f)), text)
		require.EqualValues(w, len(want), must(w.Count(w.Context(), f, 0))(w), text)
	}
	both := dlq.Filter{Topic: "orders", PayloadFields: []wire.PayloadField{
		{Path: []string{"customer", "id"}, Value: "42"}, {Path: []string{"paid"}, Value: `"true"`},
	}}
	require.Equal(w, []int64{id["text"]}, ids(w.all(both)), "fields are combined with AND")
	forged := wire.PayloadField{Path: []string{`a"] || true`}, Value: "1"}
	fails(w.List(w.Context(), dlq.Filter{PayloadFields: []wire.PayloadField{forged}}, dlq.Page{}))(w, dlq.ErrInvalid)
}

// A search finds an error regardless of accents and letter case. All other characters are matched literally.
func (w *world) TestSearchIgnoresAccents() {
	failed := func(n int, text string) int64 { return w.put(letter(n, dies(text)))[0].ID }
	cpf := failed(1, "Falha na validação: CPF inválido")
	plain := failed(2, "Falha na validacao: CPF invalido")
	loud := failed(3, "FALHA NA VALIDAÇÃO: CPF INVÁLIDO")
	other := failed(4, "Falha na validação: CNPJ ausente")
	signs := failed(5, `a.c (x|y)* [z]? ^$ {2} +\d "q" l'été`)
	failed(6, `abc xy z 22 5`)
	greek := failed(7, "ΣΦΑΛΜΑ πληρωμής")

	for _, tt := range []struct {
		text string
		want []int64
	}{
		{"CPF invalido", []int64{cpf, plain, loud}},
		{"CPF inválido", []int64{cpf, plain, loud}},
		{"cpf INVÀLÍDO", []int64{cpf, plain, loud}},
		{"cpf inva\u0301lido", []int64{cpf, plain, loud}}, // as some keyboards write it
		{"validaçao: CP", []int64{cpf, plain, loud}},
		{"validacao", []int64{cpf, plain, loud, other}},
		{"invalidou", nil},
		{"a.c (X|Y)* [Z]? ^$ {2} +", []int64{signs}},
		{`\d "q" l'ete`, []int64{signs}},
		{"(x|y)*", []int64{signs}},
		{"a_c", nil},
		{"%", nil},
		{".*", nil},
		{"[a-z]", nil},
		{"ΠΛΗΡΩΜ", []int64{greek}},
		{strings.Repeat("é", 3000), nil},
	} {
		for field, f := range map[string]dlq.Filter{"error": {ErrorText: tt.text}, "cause": {CauseText: tt.text}} {
			if field == "cause" && strings.ContainsAny(tt.text, `{"`) {
				continue // a cause has neither numbers nor quoted text
			}
			require.ElementsMatch(w, tt.want, ids(w.all(f)), "%s: %.40s", field, tt.text)
			require.EqualValues(w, len(tt.want), must(w.Count(w.Context(), f, 0))(w), "%s: %.40s", field, tt.text)
		}
	}
	require.Len(w, must(w.Groups(w.Context(), dlq.GroupQuery{CauseText: "cpf invalido"}))(w), 3)
}
