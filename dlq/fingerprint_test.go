package dlq_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
)

// Texts as databases, brokers, clients and the five systems write them: the parts that differ between messages are
// removed, the rest stays.
func TestNormalize(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"connection reset", "connection reset"},
		{"dial tcp 10.0.0.1:5432: connect: connection refused", "dial tcp ?: connect: connection refused"},
		{"dial tcp [::1]:5432: connect: connection refused", "dial tcp [::?]:?: connect: connection refused"},
		{`Post "https://pay.example.com/v1/charge?id=17": context deadline exceeded`, `Post "?": context deadline exceeded`},
		{"read tcp 10.1.2.3:48210->10.0.0.9:5672: i/o timeout", "read tcp ?->?: i/o timeout"},
		{"order 12345 not found", "order ? not found"},
		{"order-12345: payment of 99.90 EUR refused", "order-?: payment of ? EUR refused"},
		{"user 6f1c2ab0-9c1d-4f0e-8a55-0c2f6b1f1d2e is blocked", "user ? is blocked"},
		{"user ABCDEFAB-CDEF-ABCD-EFAB-CDEFABCDEFAB is blocked", "user ? is blocked"},
		{"CPF 123.456.789-09 inválido", "CPF ? inválido"},
		{"Falha na validação: idade 15 menor que 16", "Falha na validação: idade ? menor que ?"},
		{"at 2026-02-28T22:53:42+00:00: timeout", "at ?: timeout"},
		{"at 2026-02-28 22:53:42.123456 UTC: timeout", "at ?: timeout"},
		{"Sat, 28 Feb 2026 22:53:42 GMT: timeout", "?: timeout"},
		{"timeout after 30s", "timeout after ?"},
		{"timeout after 1m30.5s", "timeout after ?"},
		{"timeout after 250ms", "timeout after ?"},
		{
			"invalid memory address or nil pointer dereference [signal 0xb code=0x1]",
			"invalid memory address or nil pointer dereference [signal ? code=?]",
		},
		{"goroutine 17 at 0xc000123abc", "goroutine ? at ?"},
		{"object deadbeef01 is gone", "object ? is gone"},
		{
			`pq: duplicate key value violates unique constraint "orders_pkey"`,
			`pq: duplicate key value violates unique constraint "?"`,
		},
		{"Error 1062 (23000): Duplicate entry 'a-1' for key 'PRIMARY'", "Error ? (?): Duplicate entry '?' for key '?'"},
		{
			"ERROR: value too long for type character varying(50) (SQLSTATE 22001)",
			"ERROR: value too long for type character varying(?) (SQLSTATE ?)",
		},
		{"can't parse customer's age", "can't parse customer's age"},
		{"can't parse 'x'", "can't parse '?'"},
		{"unterminated \"quote", "unterminated \"quote"},
		{"invalid character 'x' looking for beginning of value", "invalid character '?' looking for beginning of value"},
		{
			"json: cannot unmarshal string into Go struct field Order.items.0.price of type float64",
			"json: cannot unmarshal string into Go struct field Order.items.?.price of type float?",
		},
		{"strconv.Atoi: parsing \"abc\": invalid syntax", "strconv.Atoi: parsing \"?\": invalid syntax"},
		{
			"rpc error: code = Unavailable desc = transport is closing",
			"rpc error: code = Unavailable desc = transport is closing",
		},
		{
			"kafka server: Message was too large (1048588 bytes, limit 1000012)",
			"kafka server: Message was too large (? bytes, limit ?)",
		},
		{
			"x509: certificate has expired: current time 2026-11-21T04:12:00Z is after",
			"x?: certificate has expired: current time ? is after",
		},
		{"token 01HXYZ8K2M4N6P8Q0R2S4T6V8W rejected", "token ? rejected"},
		{"a  b\n\tc", "a b c"},
		{"page 3 of 10", "page ? of ?"},
		{"panic: \x00\xff odd", "panic: \x00\uFFFD odd"},
		{"Mon is a day, May not", "Mon is a day, May not"},
		{"ids 1, 2, 3 and 4", "ids ? and ?"},
		{"db7 is down", "db? is down"},
	} {
		require.Equal(t, c.want, dlq.Normalize(c.in), "%q", c.in)
	}
}

func TestNormalize_Bounds(t *testing.T) {
	t.Parallel()
	for name, in := range map[string]string{
		"long word":      strings.Repeat("x", 1<<20),
		"long wide text": strings.Repeat("漢", 1<<18),
		"many quotes":    strings.Repeat(`"`, 1<<20),
		"open quotes":    strings.Repeat(`'"`+"`", 1<<18),
		"spaces":         strings.Repeat(" ", 1<<20),
		"numbers":        strings.Repeat("1 ", 1<<19),
		"punctuation":    "1" + strings.Repeat("-", 1<<20),
	} {
		out := dlq.Normalize(in)
		require.LessOrEqual(t, len(out), 512, name)
		require.True(t, utf8.ValidString(out), name)
	}
}

func TestFingerprint(t *testing.T) {
	t.Parallel()
	base := dlq.Fingerprint("charge", "*pay.Error", "504", "order 17: timeout")
	require.Equal(t, "d4207983b23b5e58", base, "the value is stored: it must never change")
	require.Equal(t, base, dlq.Fingerprint("charge", "*pay.Error", "504", "order 99999: timeout"))
	for name, other := range map[string]string{
		"handler": dlq.Fingerprint("refund", "*pay.Error", "504", "order 17: timeout"),
		"class":   dlq.Fingerprint("charge", "*pay.Other", "504", "order 17: timeout"),
		"code":    dlq.Fingerprint("charge", "*pay.Error", "404", "order 17: timeout"),
		"text":    dlq.Fingerprint("charge", "*pay.Error", "504", "order 17: refused"),
		"shifted": dlq.Fingerprint("charg", "e*pay.Error", "504", "order 17: timeout"),
	} {
		require.NotEqual(t, base, other, name)
	}
}

func FuzzNormalize(f *testing.F) {
	f.Add("order 12345 at 2026-02-28T22:53:42Z 'x' \xff")
	f.Fuzz(func(t *testing.T, in string) {
		out := dlq.Normalize(in)
		require.LessOrEqual(t, len(out), 512)
		require.True(t, utf8.ValidString(out))
	})
}

func BenchmarkFingerprint(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		dlq.Fingerprint("charge", "*pay.Error", "504",
			"order 6f1c2ab0-9c1d-4f0e-8a55-0c2f6b1f1d2e: dial tcp 10.0.0.1:5432: connection refused")
	}
}
