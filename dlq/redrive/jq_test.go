package redrive_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/sqlstore"
)

// sample previews one payload under a jq expression.
func sample(t *testing.T, text, jq string) (after, problem string) {
	t.Helper()
	store := newStore(t)
	d := death(1)
	d.Message.Payload = []byte(text)
	id := stored(t, store, d)
	c := &consumer{silent: true}
	m := operate(t, store, c)
	preview, err := m.PreviewRun(t.Context(), redrive.Spec{JQ: jq}, 1)
	require.NoError(t, err)
	run, err := m.StartRun(t.Context(), redrive.Spec{JQ: jq, CloseOnPublish: true}, ana)
	require.NoError(t, err)
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	original, err := m.Body(t.Context(), id, 0)
	require.NoError(t, err)
	require.Equal(t, text, string(original.Payload), "the original is kept")
	if problem := preview.Sample[0].Problem; problem != "" {
		require.Equal(t, redrive.Counts{Skipped: 1}, run.Counts)
		items, err := m.RunItems(t.Context(), run.ID, redrive.ItemFilter{})
		require.NoError(t, err)
		require.Equal(t, "not edited: "+problem, items[0].Detail)
		require.Equal(t, int64(1), count(t, store, pending()), "left alone")
		return "", problem
	}
	sent := string(c.sent[0].Payload)
	require.Equal(t, sent != text, !preview.Sample[0].Diff.Empty(), "the preview matches the run")
	return sent, ""
}

// noProcess is an evaluator that cannot start its processes for a while.
type noProcess struct {
	payload.InProcess

	works int // one call of so many works; 0 for none
	calls int
}

func (e *noProcess) Evaluate(ctx context.Context, expression string, data []byte) ([]byte, error) {
	if e.calls++; e.works == 0 || e.calls%e.works != 0 {
		return nil, fmt.Errorf("%w: fork: cannot allocate memory", payload.ErrNotEvaluated)
	}
	return e.InProcess.Evaluate(ctx, expression, data)
}

// An entry is skipped if its payload cannot be edited, not if nothing has tried.
func TestRun_JQWithoutAProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		_, store := operated(t, 4, c)
		m := operateBy(t, dlq.ManagerConfig{Store: store, Redriver: c, JQ: &noProcess{works: 4}})
		run, err := m.StartRun(t.Context(), redrive.Spec{JQ: ".n = 7"}, ana)
		require.NoError(t, err)
		run, err = m.Drive(t.Context(), run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Counts{Succeeded: 4}, run.Counts)
		require.JSONEq(t, `{"n":7}`, string(c.sent[0].Payload))
	})
}

// A run whose expression is never evaluated stops, instead of reading its entries again without end.
func TestRun_JQNeverEvaluated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &consumer{}
		_, store := operated(t, 3, c)
		m := operateBy(t, dlq.ManagerConfig{Store: store, Redriver: c, JQ: &noProcess{}})
		preview, err := m.PreviewRun(t.Context(), redrive.Spec{JQ: ".n = 7"}, 1)
		require.NoError(t, err)
		said := preview.Wire().Sample[0].Trouble()
		require.Contains(t, said, "Could not be evaluated")
		require.Contains(t, said, "cannot allocate memory")
		require.NotContains(t, said, "skipped")
		run, err := m.StartRun(t.Context(), redrive.Spec{JQ: ".n = 7"}, ana)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		run, err = m.Drive(ctx, run.ID)
		require.NoError(t, err)
		require.Equal(t, redrive.Stopped, run.State)
		require.Contains(t, run.Cause, payload.ErrNotEvaluated.Error())
		require.Equal(t, redrive.Counts{Waiting: 3}, run.Counts)
		_, _, err = m.Edit(t.Context(), 1, dlq.Edit{JQ: "."}, ana)
		require.ErrorIs(t, err, payload.ErrNotEvaluated)
		require.NotErrorIs(t, err, dlq.ErrInvalid)
	})
}

// readRuns changes something after the first read of items.
type readRuns struct {
	*sqlstore.Store

	then func(items []redrive.Item)
	once sync.Once
}

func (s *readRuns) NextItems(ctx context.Context, id string, after int64, limit int, bytes int64) ([]redrive.Item,
	error,
) {
	items, err := s.Store.NextItems(ctx, id, after, limit, bytes)
	s.once.Do(func() { s.then(items) })
	return items, err
}

// An entry that is purged while the run reads it, or missing, stops neither its process nor the others of its run.
func TestRun_EntryIsGoneWhileItIsRead(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		then func(t *testing.T, s *sqlstore.Store, items []redrive.Item)
		want redrive.Counts
	}{
		"purged": {func(t *testing.T, s *sqlstore.Store, items []redrive.Item) {
			t.Helper()
			at := time.Now()
			_, err := s.Change(t.Context(), driver.Change{
				Action: driver.ActionResolve, IDs: []int64{items[1].EntryID}, Actor: "bob", At: at,
			})
			require.NoError(t, err)
			n, err := s.Purge(t.Context(), driver.Purge{Actor: "bob", At: at, ClosedBefore: at.Add(time.Hour)})
			require.NoError(t, err)
			require.Equal(t, 1, n)
		}, redrive.Counts{Succeeded: 2, Skipped: 1}},
		"its body was not there": {func(_ *testing.T, _ *sqlstore.Store, items []redrive.Item) {
			items[1].Entry.Body = nil
		}, redrive.Counts{Succeeded: 3}},
		"it was not there": {func(_ *testing.T, _ *sqlstore.Store, items []redrive.Item) {
			items[1].Entry = nil
		}, redrive.Counts{Succeeded: 3}},
	} {
		for _, jq := range []string{"", ".n = 7"} {
			t.Run(name+" "+jq, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					c := &consumer{}
					_, store := operated(t, 3, c)
					runs := &readRuns{Store: store, then: func(items []redrive.Item) { test.then(t, store, items) }}
					m := operate(t, runs, c)
					run, err := m.StartRun(t.Context(), redrive.Spec{JQ: jq}, ana)
					require.NoError(t, err)
					began := time.Now()
					run, err = m.Drive(t.Context(), run.ID)
					require.NoError(t, err)
					require.Equal(t, redrive.Completed, run.State, run.Cause)
					require.Equal(t, test.want, run.Counts)
					require.Less(t, time.Since(began), 10*time.Second)
				})
			})
		}
	}
}

// Parts that an expression does not touch keep their bytes: numbers, order, white space, escapes.
func TestRun_JQKeepsTheRest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, jq, out string }{
		"big integer": {`{"id": 9007199254740993, "a": 1}`, `.a = 2`, `{"id": 9007199254740993, "a": 2}`},
		"huge integer": {
			`{"id":123456789012345678901234567890,"a":1}`, `.a = .id`,
			`{"id":123456789012345678901234567890,"a":123456789012345678901234567890}`,
		},
		"decimals":      {`{"price":19.90,"tiny":1E-400,"a":1}`, `.a += 1`, `{"price":19.90,"tiny":1E-400,"a":2}`},
		"moved literal": {`{"price":19.90}`, `.old = .price`, `{"price":19.90,"old":19.90}`},
		"order and tabs": {
			"{\n\t\"z\": 1,\n\t\"a\": {\"y\": [1, 2], \"b\": null}\n}\n", `.a.b = true`,
			"{\n\t\"z\": 1,\n\t\"a\": {\"y\": [1, 2], \"b\": true}\n}\n",
		},
		"escapes":       {`{"t":"\u00e9\/<b>","a":1}`, `.a = "é<b>"`, `{"t":"\u00e9\/<b>","a":"é<b>"}`},
		"remove":        {`{"a":1,"b":2,"c":3}`, `del(.b)`, `{"a":1,"c":3}`},
		"array":         {`[{"n":1.0},{"n":2.0}]`, `.[1].n = 5`, `[{"n":1.0},{"n":5}]`},
		"shorter array": {`[1.0,2,3]`, `.[:2]`, `[1.0,2]`},
		"new kind":      {`{"a":1.0}`, `[.a]`, `[1.0]`},
		"nothing":       {`{ "a" : 1.0 }`, `.`, `{ "a" : 1.0 }`},
		"same number":   {`{"a":1.0}`, `.a = 1`, `{"a":1}`},
		"near number":   {`{"a":9007199254740993}`, `.a = 9007199254740992`, `{"a":9007199254740992}`},
		"twice the key": {`{"a":1,"a":2,"b":0}`, `.b = 1`, `{"a":2,"b":1}`},
		"scalar":        {` 17 `, `. + 1`, ` 18 `},
		"only where":    {`{"a":1}`, `if .a == 2 then .b = 1 else . end`, `{"a":1}`},
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
		"nothing":     {`{}`, `empty`, "has no result"},
		"many":        {`[1,2]`, `.[]`, "more than one result"},
		"endless":     {`{}`, `def f: f; f`, "did not end within"},
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
	m, store := operated(t, 60, c, redrive.Config{Batch: 7, Publishers: 3})
	for n := range 5 {
		d := death(100 + n)
		d.Message.Payload = []byte("not json")
		stored(t, store, d)
	}
	run, err := m.StartRun(t.Context(), redrive.Spec{JQ: `.n += 1000`}, ana)
	require.NoError(t, err)
	run, err = m.Drive(t.Context(), run.ID)
	require.NoError(t, err)
	require.Equal(t, redrive.Counts{Succeeded: 60, Skipped: 5}, run.Counts)
	for _, sent := range c.sent {
		require.Regexp(t, `^\{"n":10\d\d\}$`, string(sent.Payload))
	}
	listing, err := store.List(t.Context(), dlq.Filter{Statuses: []dlq.Status{dlq.Resolved}}, dlq.Page{Limit: 1})
	require.NoError(t, err)
	e := listing.Entries[0]
	require.Equal(t, 1, e.Revision)
	before, err := m.Body(t.Context(), e.ID, 0)
	require.NoError(t, err)
	after, err := m.Body(t.Context(), e.ID, 1)
	require.NoError(t, err)
	require.Contains(t, payload.Compare(before, after).String(), "+  \"n\": 10")
	records, err := m.Audit(t.Context(), e.ID)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"revision": "1"}, records[0].Detail)
}
