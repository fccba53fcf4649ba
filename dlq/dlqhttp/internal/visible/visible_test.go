package visible_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/redact"
)

// A difference shows the changes of visible text, and does not depend on hidden values: it confirms no guess.
func TestDiff(t *testing.T) {
	t.Parallel()
	rules, err := redact.New(redact.Config{Paths: []string{"$.cpf"}, Headers: []string{"auth"}})
	require.NoError(t, err)
	v := visible.New(rules, "admin", nil)
	body := func(payload, auth string) *dlq.Body {
		return &dlq.Body{Payload: []byte(payload), Headers: map[string]string{"auth": auth, "tenant": "a"}}
	}
	d := v.Diff(body(`{"cpf":"111","total":1}`, "old"), body(`{"cpf":"222","total":2}`, "new"))
	require.NotRegexp(t, "111|222|old|new", d.String())
	require.Contains(t, d.String(), `+  "total": 2`)
	for _, guess := range []string{"111", "222", "33333"} {
		d = v.Diff(body(`{"cpf":"111"}`, "x"), body(`{"cpf":"`+guess+`"}`, guess))
		require.Equal(t, v.Diff(body(`{"cpf":"111"}`, "x"), body(`{"cpf":"111"}`, "x")), d, guess)
	}
	added := v.Diff(&dlq.Body{}, body(``, "new"))
	require.NotContains(t, added.String(), "new")
}

// Whether an edit has an effect would confirm a guess: hidden text cannot be edited, whether it exists or not.
func TestEdit(t *testing.T) {
	t.Parallel()
	rules, err := redact.New(redact.Config{
		Paths: []string{"$.cpf"}, Headers: []string{"auth"},
		Texts: []string{`\d{4}-\d{4}`},
	})
	require.NoError(t, err)
	v := visible.New(rules, "admin", nil)
	body := &dlq.Body{Payload: []byte(`{"cpf":"111"}`), Headers: map[string]string{"card": "1234-5678", "tenant": "a"}}
	for name, edit := range map[string]dlq.Edit{
		"the whole payload, guessed": {Payload: []byte(`{"cpf":"111"}`)},
		"the mask":                   {Payload: []byte(`{"cpf":"[redacted]"}`)},
		"jq":                         {JQ: "."},
		"a header it does not have":  {SetHeaders: map[string]string{"auth": "x"}},
		"a header with hidden text":  {SetHeaders: map[string]string{"card": "1"}},
		"hidden text":                {SetHeaders: map[string]string{"tenant": "1234-5678"}},
		"removing":                   {RemoveHeaders: []string{"auth"}},
	} {
		var refused *visible.RefusedError
		require.ErrorAs(t, v.Edit(&edit, body), &refused, name)
		require.NoError(t, visible.View{}.Edit(&edit, body), name)
	}
	require.NoError(t, v.Edit(&dlq.Edit{SetHeaders: map[string]string{"tenant": "b"}}, body))
	require.NoError(t, v.Edit(&dlq.Edit{Payload: []byte(`{"total":2}`)}, &dlq.Body{Payload: []byte(`{"total":1}`)}))
}
