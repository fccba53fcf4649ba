package envelope

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// jsonTexts are valid and invalid; encoding/json decides which.
var jsonTexts = []string{
	"", " ", "null", "nul", "nulll", "true", "false", "tru", "0", "-0", "-", "01", "-01", "1.", ".1", "1.0", "1e", "1e+",
	"1E-7", "1e400", "+1", "0x1", "NaN",
	`""`, `"`, `"a`, `"\"`, `"\\"`, `"\u12aF"`, `"\u12g0"`, `"\u12"`, `"\u@000"`, `"\uD800"`, `"\x"`, "\"\t\"", "\"\x7f\"",
	"\"\xff\"", `"1234567"`, `"12345678"`, `"123456789\n"`,
	"[]", "[ ]", "[", "]", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "[1,2]", "[[[]]]", "[[]]]", "[}", "{]",
	"{}", "{ }", "{", "}", `{"a"}`, `{"a":}`, `{"a":1`, `{"a":1,}`, `{"a":1,"b"}`, `{"a":1 "b":2}`,
	`{"a":1,"b":[{"c":{}}]}`, `{1:2}`, `{"a":1}}`, `{"a":[1}`, `{"a"=1}`,
	"1 2", "\ufeff1", "\v1", "[1]\n\r\t ", " \n\r\t[1]", strings.Repeat("[", 70) + strings.Repeat("]", 70),
	strings.Repeat(`{"a":`, 130) + "1" + strings.Repeat("}", 130),
	strings.Repeat("[", 64) + "{" + strings.Repeat("]", 64), strings.Repeat(`[{"a":`, 64) + "1" + strings.Repeat("}]", 64),
	strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001),
}

// scanned reports whether the scanner accepts all of text as one JSON value.
func scanned(text string) bool {
	end := skipValue([]byte(text), 0, 0)
	return end >= 0 && skipSpace([]byte(text), end) == len(text)
}

func TestSkipValue_AgreesWithEncodingJSON(t *testing.T) {
	for _, text := range jsonTexts {
		require.Equal(t, json.Valid([]byte(text)), scanned(text), "%.80q", text)
	}
}

// Long strings are searched, not walked: each stop character at each position.
func TestSkipValue_LongStrings(t *testing.T) {
	for n := longString - 9; n < longString+80; n++ {
		text := strings.Repeat("x", n)
		for _, stop := range []string{"", "\n", `\"`, `\\`, `\u12aF`, `\x`, `\u12"`, "\t", "\x1f", "\x7f\xff", `"`} {
			for _, behind := range []string{"", text, text + `\"` + text, text + `\\`, "\x00"} {
				json1 := `["` + text + stop + behind + `"]`
				require.Equal(t, json.Valid([]byte(json1)), scanned(json1), "%q", json1)
			}
		}
	}
	require.False(t, scanned(`"`+strings.Repeat("x", 500)))
	require.False(t, scanned(`"`+strings.Repeat("x", 500)+`\`))
}

func TestObject_AgreesWithEncodingJSON(t *testing.T) {
	for _, text := range jsonTexts {
		var s body
		whole := s.scan([]byte(text))
		isObject := strings.HasPrefix(strings.TrimLeft(strings.TrimPrefix(text, bom), " \n\r\t"), "{")
		require.Equal(t, isObject && json.Valid([]byte(text)), whole, "%.80q", text)
	}
}

func FuzzScan(f *testing.F) {
	for _, text := range jsonTexts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		require.Equal(t, json.Valid([]byte(text)), scanned(text))
	})
}

func TestAppendString_AgreesWithEncodingJSON(t *testing.T) {
	for _, s := range []string{"", "a", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "é€😀", "\xff", "a\xe2\x82", "\u2028<&>", "\ufffd"} {
		var back, want string
		require.NoError(t, json.Unmarshal(appendString(nil, s), &back))
		encoded, err := json.Marshal(s)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(encoded, &want))
		require.Equal(t, want, back)
	}
}

func TestEscapeText_ReadsBack(t *testing.T) {
	for _, s := range []string{"", "plain", "a\nb\r\t\x00\x7f", `C:\new\x41`, `\`, `\\n`, "é\\"} {
		escaped := escapeText(s, MaxErrorTrace, true)
		require.Equal(t, s, unescapeText(escaped))
		require.NotContains(t, escaped, "\n")
	}
	for _, foreign := range []string{`\q`, `\`, `\x`, `\xZZ`, `\xff`} {
		require.Equal(t, foreign, unescapeText(foreign), "not written by escapeText")
	}
}

func TestBoundText_CutsOnARuneBorder(t *testing.T) {
	for limit := 40; limit < 60; limit++ {
		cut := boundText(strings.Repeat("€", 100), limit)
		require.LessOrEqual(t, len(cut), limit)
		require.Regexp(t, `^€+\.\.\. \[cut, 300 bytes in all\]$`, cut)
	}
	require.Equal(t, "€€", boundText("€€", 6))
	require.Equal(t, "a\ufffd", boundText("a\xff", 10))
}
