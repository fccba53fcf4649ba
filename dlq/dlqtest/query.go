package dlqtest

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// Each filter alone selects exactly the one letter that differs in that field.
func testFilters(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	common := put(t, s, letter(1))[0].ID
	cases := map[string]struct {
		edit   func(*envelope.DeadLetter)
		filter dlq.Filter
	}{
		"topic": {
			func(d *envelope.DeadLetter) { d.Origin.Topic = "employee-create" },
			dlq.Filter{Topic: "employee-create"},
		},
		"consumer": {func(d *envelope.DeadLetter) { d.Origin.Consumer = "esocial" }, dlq.Filter{Consumer: "esocial"}},
		"event type": {
			func(d *envelope.DeadLetter) { d.Message.Metadata["x-event"] = "created" },
			dlq.Filter{EventType: "created"},
		},
		"handler": {func(d *envelope.DeadLetter) { d.Handler = "refund" }, dlq.Filter{Handler: "refund"}},
		"reason": {
			func(d *envelope.DeadLetter) { d.Reason = envelope.ReasonPanic },
			dlq.Filter{Reason: string(envelope.ReasonPanic)},
		},
		"error class": {func(d *envelope.DeadLetter) { d.Class = "*main.CPF" }, dlq.Filter{ErrorClass: "*main.CPF"}},
		"error code":  {func(d *envelope.DeadLetter) { d.Err.Code = "422" }, dlq.Filter{ErrorCode: "422"}},
		"event id": {
			func(d *envelope.DeadLetter) { d.Message.Metadata[envelope.KeyMessageID] = "special" },
			dlq.Filter{EventID: "special"},
		},
		"source table": {
			func(d *envelope.DeadLetter) { d.Message.Metadata["source_table"] = "employee" },
			dlq.Filter{SourceTable: "employee"},
		},
		"source id": {
			func(d *envelope.DeadLetter) { d.Message.Metadata["source_id"] = "E-17" },
			dlq.Filter{SourceID: "E-17"},
		},
		"correlation id": {
			func(d *envelope.DeadLetter) { d.Message.Metadata["correlation_id"] = "c-9" },
			dlq.Filter{CorrelationID: "c-9"},
		},
		"trace id": {
			func(d *envelope.DeadLetter) {
				d.Message.Metadata[envelope.KeyTraceParent] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
			},
			dlq.Filter{TraceID: "4bf92f3577b34da6a3ce929d0e0e4736"},
		},
		"error text": {
			func(d *envelope.DeadLetter) { d.Err.Message = "CPF 100%_sure invalid" },
			dlq.Filter{ErrorText: "cpf 100%_SURE"},
		},
		"cause text": {
			func(d *envelope.DeadLetter) { d.Err.Message = "no such customer 17" },
			dlq.Filter{CauseText: "such CUSTOMER"},
		},
		"payload text": {
			func(d *envelope.DeadLetter) { d.Message.Payload = []byte("\x00needle\xff") },
			dlq.Filter{PayloadText: "\x00needle\xff"},
		},
		"from": {func(d *envelope.DeadLetter) { d.At = noon.Add(time.Hour) }, dlq.Filter{From: noon.Add(time.Hour)}},
		"to": {
			func(d *envelope.DeadLetter) { d.At = noon.Add(-time.Hour) },
			dlq.Filter{To: noon.Add(-time.Hour + time.Microsecond)},
		},
		"fingerprint": {
			func(d *envelope.DeadLetter) { d.Err.Message = "unique" },
			dlq.Filter{Fingerprint: dlq.Fingerprint("charge", "*main.TimeoutError", "504", "unique")},
		},
	}
	n := 10
	special := map[string]int64{}
	for name, c := range cases {
		n++
		special[name] = put(t, s, letter(n, c.edit))[0].ID
	}
	for name, c := range cases {
		require.Equal(t, []int64{special[name]}, ids(all(t, s, c.filter)), name)
	}
	total := len(cases) + 1
	require.Len(t, all(t, s, dlq.Filter{}), total)

	mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: []int64{common}, At: noon.Add(time.Hour)})
	require.Equal(t, []int64{common}, ids(all(t, s, dlq.Filter{Statuses: []dlq.Status{dlq.Resolved}})))
	require.Equal(t, []int64{common}, ids(all(t, s, dlq.Filter{Statuses: []dlq.Status{dlq.Resolved, dlq.Discarded}})))
	require.Len(t, all(t, s, dlq.Filter{Statuses: []dlq.Status{dlq.Pending, dlq.Resolved, dlq.Pending}}), total)
	require.Equal(t, ids(all(t, s, dlq.Filter{})), ids(all(t, s, dlq.Filter{Statuses: driver.Statuses()})),
		"in the same order")
	require.Len(t, all(t, s, dlq.Filter{Topic: "orders"}), total-1, "with every status")
	require.Equal(t, []int64{common}, ids(all(t, s, dlq.Filter{ResolvedBefore: noon.Add(2 * time.Hour)})))
	require.Empty(t, all(t, s, dlq.Filter{ResolvedBefore: noon.Add(time.Hour)}))
	require.Equal(t, []int64{special["to"]},
		ids(all(t, s, dlq.Filter{DiedBefore: noon.Add(-time.Hour + time.Microsecond)})))
	require.Empty(t, all(t, s, dlq.Filter{DiedBefore: noon.Add(-time.Hour)}))
	mustChange(t, s, driver.Change{Action: driver.ActionRedrive, IDs: []int64{special["handler"]}, Run: "run-1"})
	require.Equal(t, []int64{special["handler"]}, ids(all(t, s, dlq.Filter{Run: "run-1"})))
	never, once := 0, 1
	require.Equal(t, []int64{special["handler"]}, ids(all(t, s, dlq.Filter{Redrives: &once})))
	require.Len(t, all(t, s, dlq.Filter{Redrives: &never}), total-1)
	require.Equal(t, []int64{common}, ids(all(t, s, dlq.Filter{IDs: []int64{common, 4711}})))
	require.Empty(t, all(t, s, dlq.Filter{IDs: []int64{}}), "an empty list of ids selects nothing")
	require.Empty(t, all(t, s, dlq.Filter{Topic: "employee-create", Handler: "refund"}), "filters are combined with AND")
	require.Empty(t, all(t, s, dlq.Filter{Handler: "' OR 1=1 --"}))
	require.Equal(t, []int64{special["error text"]}, ids(all(t, s, dlq.Filter{ErrorText: "%"})), "percent is literal")
	require.Empty(t, all(t, s, dlq.Filter{ErrorText: `\`}))
}

func testFilterRefuses(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	for name, f := range map[string]dlq.Filter{
		"status":     {Statuses: []dlq.Status{"PENDIGN"}},
		"time range": {From: noon, To: noon},
	} {
		_, err := s.List(t.Context(), f, dlq.Page{})
		require.ErrorIs(t, err, dlq.ErrInvalid, name)
		_, err = s.Count(t.Context(), f, 0)
		require.ErrorIs(t, err, dlq.ErrInvalid, name)
	}
	for name, p := range map[string]dlq.Page{
		"negative limit": {Limit: -1}, "huge limit": {Limit: driver.MaxPage + 1}, "order": {Order: "random"},
	} {
		_, err := s.List(t.Context(), dlq.Filter{}, p)
		require.ErrorIs(t, err, dlq.ErrInvalid, name)
	}
}

// pages reads a listing to its end, and calls between before every page except the first.
func pages(t *testing.T, s dlq.Store, f dlq.Filter, p dlq.Page, between func()) []int64 {
	t.Helper()
	var list []int64
	for {
		listing := must(s.List(t.Context(), f, p))(t)
		require.LessOrEqual(t, len(listing.Entries), p.Limit)
		list = append(list, ids(listing.Entries)...)
		if listing.Next == "" {
			return list
		}
		require.Len(t, listing.Entries, p.Limit)
		p.After = listing.Next
		between()
	}
}

func putMany(t *testing.T, s dlq.Store, from, to int, edits ...func(*envelope.DeadLetter)) []int64 {
	t.Helper()
	var list []int64
	for n := from; n < to; n++ {
		list = append(list, put(t, s, letter(n, edits...))[0].ID)
	}
	return list
}

func testPaging(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	oldest := putMany(t, s, 0, 23)
	newest := reversed(oldest)
	for _, limit := range []int{1, 5, 22, 23, 24} {
		require.Equal(t, newest, pages(t, s, dlq.Filter{}, dlq.Page{Limit: limit}, func() {}))
		require.Equal(t, oldest, pages(t, s, dlq.Filter{Topic: "orders"}, dlq.Page{Limit: limit, Order: driver.OldestFirst},
			func() {}))
	}
	listing := must(s.List(t.Context(), dlq.Filter{Topic: "none"}, dlq.Page{}))(t)
	require.Empty(t, listing.Entries)
	require.Empty(t, listing.Next)
	// An entry that is stored late, from a spool, is the last in the order of storing, and at the time of its death in
	// the other order.
	late := put(t, s, letter(100, func(d *envelope.DeadLetter) { d.At = noon.Add(-time.Hour) }))
	stored := append(slices.Clone(oldest), late[0].ID)
	for _, f := range []dlq.Filter{{}, {Topic: "orders"}, {Statuses: driver.Statuses()}} {
		require.Equal(t, stored, pages(t, s, f, dlq.Page{Limit: 5, Order: driver.StoredFirst}, func() {}))
		require.Equal(t, reversed(stored), pages(t, s, f, dlq.Page{Limit: 24, Order: driver.StoredLast}, func() {}))
		require.Equal(t, late[0].ID, pages(t, s, f, dlq.Page{Limit: 5, Order: driver.OldestFirst}, func() {})[0])
	}
}

func reversed(list []int64) []int64 {
	turned := make([]int64, len(list))
	for i, id := range list {
		turned[len(list)-1-i] = id
	}
	return turned
}

// Entries that are added or change status while a person pages through a listing cause no repeated and no missing
// entries.
func testPagingUnderInserts(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	there := putMany(t, s, 0, 20)
	n := 100
	got := pages(t, s, dlq.Filter{Statuses: []dlq.Status{dlq.Pending}}, dlq.Page{Limit: 4}, func() {
		n++
		putMany(t, s, n, n+1)
		mustChange(t, s, driver.Change{Action: driver.ActionDiscard, IDs: there[19:20]})
		there = append([]int64{}, there...)
		mustChange(t, s, driver.Change{Action: driver.ActionRestore, IDs: there[19:20]})
	})
	require.Equal(t, reversed(there), got)
}

// Letters that died in the same microsecond are ordered by id.
func testPagingSameInstant(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	same := putMany(t, s, 0, 9, func(d *envelope.DeadLetter) { d.At = noon })
	require.Equal(t, reversed(same), pages(t, s, dlq.Filter{}, dlq.Page{Limit: 2}, func() {}))
	require.Equal(t, same, pages(t, s, dlq.Filter{}, dlq.Page{Limit: 2, Order: driver.OldestFirst}, func() {}))
}

func testForgedCursor(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	putMany(t, s, 0, 3)
	listing := must(s.List(t.Context(), dlq.Filter{}, dlq.Page{Limit: 1}))(t)
	for name, cursor := range map[string]string{
		"text":        "first",
		"not base64":  "!!!!",
		"too short":   listing.Next[:8],
		"too long":    listing.Next + "AAAA",
		"no version":  base64.RawURLEncoding.EncodeToString(make([]byte, 18)),
		"sql":         "' OR 1=1 --",
		"huge":        strings.Repeat("A", 100_000),
		"other order": driver.Cursor{Order: driver.OldestFirst, At: noon, ID: 1}.String(),
	} {
		_, err := s.List(t.Context(), dlq.Filter{}, dlq.Page{After: cursor})
		require.ErrorIs(t, err, dlq.ErrInvalid, name)
		require.Less(t, len(err.Error()), 300, name)
	}
	// A valid cursor works even if there is no entry at its position.
	nowhere := driver.Cursor{Order: driver.NewestFirst, At: noon.Add(-time.Hour), ID: -5}
	listing = must(s.List(t.Context(), dlq.Filter{}, dlq.Page{After: nowhere.String()}))(t)
	require.Empty(t, listing.Entries)
}

func testCount(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	putMany(t, s, 0, 7)
	for limit, want := range map[int64]int64{0: 7, 3: 3, 7: 7, 100: 7} {
		require.Equal(t, want, must(s.Count(t.Context(), dlq.Filter{Topic: "orders"}, limit))(t), "limit %d", limit)
	}
	require.Zero(t, must(s.Count(t.Context(), dlq.Filter{Topic: "none"}, 0))(t))
}

// A store may count from its statistics by cause and hour; the result must be the same.
func testCountAgrees(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	list := putMany(t, s, 0, 24, func(d *envelope.DeadLetter) {
		n := d.At.Sub(noon) / time.Second
		d.At = noon.Add(n * 17 * time.Minute)
		d.Origin.Topic = []string{"orders", "invoices"}[n%2]
		d.Err.Message = []string{"timeout after 5s", "invalid CPF", "CPF is missing"}[n%3]
	})
	mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: list[3:4], At: noon.Add(100 * time.Hour)})
	mustChange(t, s, driver.Change{Action: driver.ActionDiscard, IDs: list[4:5], At: noon.Add(100 * time.Hour)})
	statuses := [][]dlq.Status{nil, {dlq.Pending}, {dlq.Pending, dlq.Resolved, dlq.Pending}}
	times := []time.Time{
		{},
		noon, noon.Truncate(time.Hour), noon.Add(time.Minute), noon.Add(2 * time.Hour),
		noon.Add(5*time.Hour + time.Microsecond),
	}
	fingerprint := get(t, s, list[1]).Fingerprint
	for n, f := range []dlq.Filter{
		{},
		{Topic: "orders"},
		{EventType: "invoices"},
		{Topic: "orders", EventType: "orders"},
		{Topic: "none"},
		{CauseText: "cpf"},
		{Fingerprint: fingerprint},
		{CauseText: "cpf", Topic: "orders"},
		{CauseText: "CPF", Fingerprint: fingerprint},
		{Handler: "charge"},
		{CauseText: "none"},
	} {
		// Each filter is tested with each set of statuses, with and without each time.
		var picked [][]dlq.Entry
		for _, f.Statuses = range statuses {
			picked = append(picked, all(t, s, f))
		}
		for from := range times {
			for to := range times {
				with := (n + from + to) % len(statuses)
				f.From, f.To, f.Statuses = times[from], times[to], statuses[with]
				if f.Validate() != nil {
					continue
				}
				got := must(s.Count(t.Context(), f, 0))(t)
				want := slices.DeleteFunc(slices.Clone(picked[with]), func(e dlq.Entry) bool {
					return e.CreatedAt.Before(f.From) || !f.To.IsZero() && !e.CreatedAt.Before(f.To)
				})
				require.Len(t, want, int(got), "%+v", f)
				if n%5 == 0 {
					require.Len(t, all(t, s, f), int(got), "%+v", f)
				}
			}
		}
	}
}

func testCancelled(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Put(ctx, letter(2))
	require.ErrorIs(t, err, context.Canceled)
	_, err = s.Get(ctx, id)
	require.ErrorIs(t, err, context.Canceled)
	_, err = s.Change(ctx, driver.Change{Action: driver.ActionResolve, IDs: []int64{id}, Actor: "ana", At: noon})
	require.ErrorIs(t, err, context.Canceled)
	// The store still works.
	require.Equal(t, dlq.Pending, get(t, s, id).Status)
	put(t, s, letter(3))
}

func testReopen(t *testing.T, db Database) {
	t.Helper()
	first := db(t)
	id := put(t, first, letter(1))[0].ID
	mustChange(t, first, driver.Change{Action: driver.ActionDiscard, IDs: []int64{id}})
	want := get(t, first, id)
	require.NoError(t, first.Close())
	second := db.open(t)
	require.Equal(t, want, get(t, second, id))
	require.Equal(t, driver.Seen, put(t, second, letter(1))[0].Result)
}

func testClose(t *testing.T, db Database) {
	t.Helper()
	s := db(t)
	require.NoError(t, s.Ping(t.Context()))
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	_, err := s.Put(t.Context(), letter(1))
	require.ErrorIs(t, err, dlq.ErrClosed)
	_, err = s.Get(t.Context(), 1)
	require.ErrorIs(t, err, dlq.ErrClosed)
	_, err = s.List(t.Context(), dlq.Filter{}, dlq.Page{})
	require.ErrorIs(t, err, dlq.ErrClosed)
	require.ErrorIs(t, s.Ping(t.Context()), dlq.ErrClosed)
}
