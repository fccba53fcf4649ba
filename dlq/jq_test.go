package dlq_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
)

// sample previews one payload under a jq expression.
func sample(t *testing.T, payload, jq string) (after, problem string) {
	t.Helper()
	store := newStore(t)
	d := death(1)
	d.Message.Payload = []byte(payload)
	id := stored(t, store, d)
	c := &consumer{silent: true}
	m := dlq.NewManager(store, c)
	preview, err := m.PreviewRun(t.Context(), dlq.RunSpec{JQ: jq}, 1)
	require.NoError(t, err)
	run, err := m.StartRun(t.Context(), dlq.RunSpec{JQ: jq, CloseOnPublish: true}, ana)
	require.NoError(t, err)
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	original, err := m.Body(t.Context(), id, 0)
	require.NoError(t, err)
	require.Equal(t, payload, string(original.Payload), "the original is kept")
	if problem := preview.Sample[0].Problem; problem != "" {
		require.Equal(t, dlq.RunCounts{Skipped: 1}, run.Counts)
		items, err := m.RunItems(t.Context(), run.ID, dlq.ItemFilter{})
		require.NoError(t, err)
		require.Equal(t, "not edited: "+problem, items[0].Detail)
		require.Equal(t, int64(1), count(t, store, pending()), "left alone")
		return "", problem
	}
	sent := string(c.sent[0].Payload)
	require.Equal(t, sent != payload, !preview.Sample[0].Diff.Empty(), "the preview says what happens")
	return sent, ""
}

// What an expression does not touch keeps its bytes: numbers, order, white space, escapes.
func TestRun_JQKeepsTheRest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, jq, out string }{
		"big integer":    {`{"id": 9007199254740993, "a": 1}`, `.a = 2`, `{"id": 9007199254740993, "a": 2}`},
		"huge integer":   {`{"id":123456789012345678901234567890,"a":1}`, `.a = .id`, `{"id":123456789012345678901234567890,"a":123456789012345678901234567890}`},
		"decimals":       {`{"price":19.90,"tiny":1E-400,"a":1}`, `.a += 1`, `{"price":19.90,"tiny":1E-400,"a":2}`},
		"moved literal":  {`{"price":19.90}`, `.old = .price`, `{"price":19.90,"old":19.90}`},
		"order and tabs": {"{\n\t\"z\": 1,\n\t\"a\": {\"y\": [1, 2], \"b\": null}\n}\n", `.a.b = true`, "{\n\t\"z\": 1,\n\t\"a\": {\"y\": [1, 2], \"b\": true}\n}\n"},
		"escapes":        {`{"t":"\u00e9\/<b>","a":1}`, `.a = "é<b>"`, `{"t":"\u00e9\/<b>","a":"é<b>"}`},
		"remove":         {`{"a":1,"b":2,"c":3}`, `del(.b)`, `{"a":1,"c":3}`},
		"array":          {`[{"n":1.0},{"n":2.0}]`, `.[1].n = 5`, `[{"n":1.0},{"n":5}]`},
		"shorter array":  {`[1.0,2,3]`, `.[:2]`, `[1.0,2]`},
		"new kind":       {`{"a":1.0}`, `[.a]`, `[1.0]`},
		"nothing":        {`{ "a" : 1.0 }`, `.`, `{ "a" : 1.0 }`},
		"same number":    {`{"a":1.0}`, `.a = 1`, `{"a":1}`},
		"near number":    {`{"a":9007199254740993}`, `.a = 9007199254740992`, `{"a":9007199254740992}`},
		"twice the key":  {`{"a":1,"a":2,"b":0}`, `.b = 1`, `{"a":2,"b":1}`},
		"scalar":         {` 17 `, `. + 1`, ` 18 `},
		"only where":     {`{"a":1}`, `if .a == 2 then .b = 1 else . end`, `{"a":1}`},
	} {
		after, problem := sample(t, c.in, c.jq)
		require.Empty(t, problem, name)
		require.Equal(t, c.out, after, name)
	}
}

// Payloads that cannot be edited are reported and left alone, in bounded time.
func TestRun_JQProblems(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, jq, problem string }{
		"not JSON":    {"\x00\xff", `.`, "not JSON"},
		"empty":       {"", `.`, "not JSON"},
		"two values":  {`{} {}`, `.`, "more than one value"},
		"fails":       {`{"a":"x"}`, `.a + 1`, "cannot add"},
		"nothing":     {`{}`, `empty`, "gives nothing"},
		"many":        {`[1,2]`, `.[]`, "more than one result"},
		"for ever":    {`{}`, `def f: f; f`, "did not end within"},
		"environment": {`{}`, `.x = $ENV.PATH | if .x == null then error("no environment") else . end`, "no environment"},
	} {
		_, problem := sample(t, c.in, c.jq)
		require.Contains(t, problem, c.problem, name)
	}
}

// A whole set: some are edited, some cannot be, and after a crash nothing is edited twice.
func TestRun_JQOverASet(t *testing.T) {
	t.Parallel()
	c := &consumer{}
	m, store := operated(t, 60, c, dlq.WithBatch(7, 3))
	for n := range 5 {
		d := death(100 + n)
		d.Message.Payload = []byte("not json")
		stored(t, store, d)
	}
	run, err := m.StartRun(t.Context(), dlq.RunSpec{JQ: `.n += 1000`}, ana)
	require.NoError(t, err)
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, dlq.RunCounts{Succeeded: 60, Skipped: 5}, run.Counts)
	for _, sent := range c.sent {
		require.Regexp(t, `^\{"n":10\d\d\}$`, string(sent.Payload))
	}
	listing, err := store.List(t.Context(), dlq.Filter{Statuses: []dlq.Status{dlq.Resolved}}, dlq.Page{Limit: 1})
	require.NoError(t, err)
	e := listing.Entries[0]
	require.Equal(t, 1, e.Revision)
	diff, err := m.Diff(t.Context(), e.ID, 0, 1)
	require.NoError(t, err)
	require.Contains(t, diff.String(), "+  \"n\": 10")
	records, err := m.Audit(t.Context(), e.ID)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"revision": "1"}, records[0].Detail)
}

func TestManager_Edit(t *testing.T) {
	t.Parallel()
	c := &consumer{}
	m, store := operated(t, 0, c)
	d := death(1)
	d.Message.Payload = []byte(`{"cpf":"123","age":15}`)
	id := stored(t, store, d)
	edit := dlq.Edit{
		Payload: []byte(`{"cpf":"529.982.247-25","age":15}`), SetHeaders: map[string]string{"fixed": "yes"}, RemoveHeaders: []string{"tenant"},
	}
	preview, err := m.PreviewEdit(t.Context(), id, edit)
	require.NoError(t, err)
	require.Equal(t, "+fixed: yes\n-tenant: acme\n {\n-  \"cpf\": \"123\",\n+  \"cpf\": \"529.982.247-25\",\n   \"age\": 15\n }\n", preview.String())
	before, err := m.Get(t.Context(), id)
	require.NoError(t, err)
	require.Zero(t, before.Revision, "a preview changes nothing")

	_, _, err = m.Edit(t.Context(), id, edit, dlq.By{Actor: "bob", Version: before.Version + 1})
	require.ErrorIs(t, err, dlq.ErrConflict)
	e, diff, err := m.Edit(t.Context(), id, edit, dlq.By{Actor: "ana", Note: "the CPF was cut", Version: before.Version})
	require.NoError(t, err)
	require.Equal(t, preview, diff)
	require.Equal(t, []any{1, dlq.Pending, "ana", before.Version + 1}, []any{e.Revision, e.Status, e.ChangedBy, e.Version})
	_, diff, err = m.Edit(t.Context(), id, edit, ana)
	require.NoError(t, err)
	require.True(t, diff.Empty())
	original, err := m.Body(t.Context(), id, 0)
	require.NoError(t, err)
	require.Equal(t, before.Body, original, "the original is kept, headers and all")
	records, err := m.Audit(t.Context(), id)
	require.NoError(t, err)
	require.Len(t, records, 1, "what changes nothing leaves no record")
	require.Equal(t, []any{dlq.ActionEdit, "the CPF was cut", "1"}, []any{records[0].Action, records[0].Note, records[0].Detail["revision"]})
	require.Contains(t, records[0].Detail["diff"], `+  "cpf": "529.982.247-25"`)

	// C38: corrected and sent again, it is handled.
	_, err = m.EditAndRedrive(t.Context(), id, dlq.Edit{SetHeaders: map[string]string{"fixed": "twice"}}, ana)
	require.NoError(t, err)
	require.Equal(t, string(edit.Payload), string(c.sent[0].Payload))
	require.Equal(t, "twice", c.sent[0].Metadata["fixed"])
	e, err = m.Get(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, []any{dlq.Resolved, 2}, []any{e.Status, e.Revision})
	_, _, err = m.Edit(t.Context(), id, dlq.Edit{Payload: []byte("x")}, ana)
	require.ErrorIs(t, err, dlq.ErrConflict, "it is done")
}

func TestManager_EditRefuses(t *testing.T) {
	t.Parallel()
	m, store := operated(t, 0, &consumer{})
	id := stored(t, store, death(1))
	for _, edit := range []dlq.Edit{
		{SetHeaders: map[string]string{"x-message-id": "another"}},
		{SetHeaders: map[string]string{"x-retry-count": "0"}},
		{RemoveHeaders: []string{"x-redrive-id"}},
		{SetHeaders: map[string]string{"x-death": "[]"}},
		{SetHeaders: map[string]string{"": "x"}},
	} {
		_, _, err := m.Edit(t.Context(), id, edit, ana)
		require.ErrorIs(t, err, dlq.ErrInvalid)
		_, err = m.PreviewEdit(t.Context(), id, edit)
		require.ErrorIs(t, err, dlq.ErrInvalid)
	}
	_, _, err := m.Edit(t.Context(), id, dlq.Edit{Payload: []byte("x")}, dlq.By{})
	require.ErrorIs(t, err, dlq.ErrInvalid)
	_, _, err = m.Edit(t.Context(), 4711, dlq.Edit{}, ana)
	require.ErrorIs(t, err, dlq.ErrNotFound)
}

func TestDiffBodies(t *testing.T) {
	t.Parallel()
	body := func(payload string) *dlq.Body { return &dlq.Body{Payload: []byte(payload)} }
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
	for name, c := range map[string]struct{ before, after, want string }{
		"same":   {"a", "a", ""},
		"binary": {"\xff", "a", "binary payload: 1 bytes before, 1 after\n"},
		"added":  {"a\nc", "a\nb\nc", " a\n+b\n c\n"},
		"gap": {
			lines(20), lines(20, 2, 15),
			" line 0\n line 1\n-line 2\n+changed 2\n line 3\n line 4\n line 5\n@…\n line 12\n line 13\n line 14\n-line 15\n+changed 15\n line 16\n line 17\n line 18\n@…\n",
		},
	} {
		require.Equal(t, c.want, dlq.DiffBodies(body(c.before), body(c.after)).String(), name)
	}
	// Big payloads that have nothing in common take no time.
	began := time.Now()
	big := dlq.DiffBodies(body(strings.Repeat("a\n", 200_000)), body(strings.Repeat("b\n", 200_000)))
	require.Len(t, big.Lines, 400_001)
	require.Less(t, time.Since(began), 5*time.Second)
}
