package payload_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
)

func TestCompare(t *testing.T) {
	t.Parallel()
	body := func(payload string) *driver.Body { return &driver.Body{Payload: []byte(payload)} }
	lines := func(n int, changed ...int) string {
		var b strings.Builder
		for i := range n {
			text := fmt.Sprintf("line %d", i)
			for _, c := range changed {
				if i == c {
					text = fmt.Sprintf("changed %d", i)
				}
			}
			b.WriteString(text + "\n")
		}
		return b.String()
	}
	nested := func(last string) string { // 16 MB when it is indented
		return strings.Repeat("[", 2_000) + strings.Repeat("1,", 2_000) + last + strings.Repeat("]", 2_000)
	}
	for name, c := range map[string]struct{ before, after, want string }{
		"nested": {nested("1"), nested("2"), "-" + nested("1") + "\n+" + nested("2") + "\n"},
		"same":   {"a", "a", ""},
		"binary": {"\xff", "a", "binary payload: 1 bytes before, 1 after\n"},
		"added":  {"a\nc", "a\nb\nc", " a\n+b\n c\n"},
		"gap": {
			lines(20), lines(20, 2, 15),
			" line 0\n line 1\n-line 2\n+changed 2\n line 3\n line 4\n line 5\n@…\n line 12\n line 13\n line 14\n-line " +
				"15\n+changed 15\n line 16\n line 17\n line 18\n@…\n",
		},
	} {
		require.Equal(t, c.want, payload.Compare(body(c.before), body(c.after)).String(), name)
	}
	// Large payloads that have nothing in common are compared quickly.
	began := time.Now()
	big := payload.Compare(body(strings.Repeat("a\n", 200_000)), body(strings.Repeat("b\n", 200_000)))
	require.Len(t, big.Lines, 400_001)
	require.Less(t, time.Since(began), time.Minute)
}

// Two viewers of payloads that differ in every line used to take a gigabyte: the whole difference is kept, but nothing
// that grows next to it.
func TestCompare_Memory(t *testing.T) { //nolint:paralleltest // it counts the allocations of the process
	before, after := strings.Repeat("a\n", 1<<19), strings.Repeat("b\n", 1<<19) // 1 MB each
	var began, ended runtime.MemStats
	runtime.ReadMemStats(&began)
	d := payload.Compare(&driver.Body{Payload: []byte(before)}, &driver.Body{Payload: []byte(after)})
	runtime.ReadMemStats(&ended)
	require.Len(t, d.Lines, 1<<20+1)
	require.Less(t, (ended.TotalAlloc-began.TotalAlloc)>>20, uint64(128))
}

// Two JSON texts that differ only in white space have no changed lines.
func TestCompare_SameWhenIndented(t *testing.T) {
	t.Parallel()
	d := payload.Compare(&driver.Body{Payload: []byte(`{"a":1}`)}, &driver.Body{Payload: []byte(`{"a": 1}`)})
	require.True(t, d.PayloadChanged)
	require.Empty(t, d.Lines)
	require.NotNil(t, d.Lines)
}

// JSON is indented unless its nesting would make it many times larger. Brackets in texts do not count.
func TestIndent(t *testing.T) {
	t.Parallel()
	wide, deep := "["+strings.Repeat("1,", 500_000)+"1]", strings.Repeat("[", 2_000)+strings.Repeat("]", 2_000)
	for name, c := range map[string]struct {
		payload string
		want    bool
	}{
		"object":   {`{"a":[1,{}]}`, true},
		"text":     {"a", false},
		"empty":    {"", false},
		"wide":     {wide, true},
		"deep":     {deep, false},
		"a text":   {`["` + strings.Repeat(`\"[{,`, 200_000) + `"]`, true},
		"after it": {`["\\",` + deep + `]`, false},
	} {
		got, indented := payload.Indent([]byte(c.payload))
		require.Equal(t, c.want, indented, name)
		if want := []byte(c.payload); !indented {
			require.Equal(t, want, got, name)
		}
		require.LessOrEqual(t, len(got), 1<<20+8*len(c.payload), name)
	}
}
