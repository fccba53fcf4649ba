package dlq_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/wire"
)

func TestParsePayloadField(t *testing.T) {
	for text, want := range map[string]wire.PayloadField{
		"customer.id=42":          {Path: []string{"customer", "id"}, Value: "42"},
		" $.customer . id == 42 ": {Path: []string{"customer", "id"}, Value: "42"},
		".customer.id = a=b":      {Path: []string{"customer", "id"}, Value: "a=b"},
		`"a.b"."c=d" = x`:         {Path: []string{"a.b", "c=d"}, Value: "x"},
		`note=`:                   {Path: []string{"note"}},
		`note="  "`:               {Path: []string{"note"}, Value: `"  "`},
	} {
		got, err := wire.ParsePayloadField(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "=", "=1", "customer", "customer.", ".=1", "a..b=1", `"a=1`, `a"b=1`, `a\b=1`, "a\x00=1", "a=\x00", `a="\u0000"`,
		"a=\xff", "a=1e9999",
		strings.Repeat("a.", 16) + "a=1", "a=" + strings.Repeat("x", 2000), `"a"x=1`,
	} {
		_, err := wire.ParsePayloadField(text)
		require.ErrorIs(t, err, dlq.ErrInvalid, text)
	}
	f := dlq.Filter{PayloadFields: make([]wire.PayloadField, 9)}
	require.ErrorIs(t, f.Validate(), dlq.ErrInvalid)
}

// A field's text form is parsed as the same field, in a filter stored with a run as well.
func TestPayloadField_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		field, err := wire.ParsePayloadField(rapid.StringMatching(`[\$a-c." =]{1,12}=[0-9a-c"= é]{0,6}`).Draw(t, "text"))
		if err != nil {
			return
		}
		before := dlq.Filter{PayloadFields: []wire.PayloadField{field}}
		require.NoError(t, before.Validate())
		data, err := json.Marshal(before)
		require.NoError(t, err)
		var after dlq.Filter
		require.NoError(t, json.Unmarshal(data, &after), string(data))
		require.Equal(t, before.PayloadFields[0].Path, after.PayloadFields[0].Path)
		require.Equal(t, field.Alternatives(), after.PayloadFields[0].Alternatives(), string(data))
	})
}
