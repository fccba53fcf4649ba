package dlqtest

import (
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
)

// A search finds an error regardless of accents and letter case. All other characters are matched literally.
func testAccents(w *world) {
	failed := func(n int, text string) int64 {
		return w.put(letter(n, func(d *envelope.DeadLetter) { d.Err.Message = text }))[0].ID
	}
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
