package dlqtest

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// Each filter alone selects exactly the one letter that differs in that field.
func (w *world) TestFilters() {
	common := w.put(letter(1))[0].ID
	cases := map[string]struct {
		edit   func(*envelope.DeadLetter)
		filter dlq.Filter
	}{
		"topic":      {topic("employee-create"), dlq.Filter{Topic: "employee-create"}},
		"consumer":   {func(d *envelope.DeadLetter) { d.Origin.Consumer = "esocial" }, dlq.Filter{Consumer: "esocial"}},
		"event type": {header("x-event", "created"), dlq.Filter{EventType: "created"}},
		"handler":    {func(d *envelope.DeadLetter) { d.Handler = "refund" }, dlq.Filter{Handler: "refund"}},
		"reason": {
			func(d *envelope.DeadLetter) { d.Reason = envelope.ReasonPanic },
			dlq.Filter{Reason: string(envelope.ReasonPanic)},
		},
		"error class":    {func(d *envelope.DeadLetter) { d.Class = "*main.CPF" }, dlq.Filter{ErrorClass: "*main.CPF"}},
		"error code":     {func(d *envelope.DeadLetter) { d.Err.Code = "422" }, dlq.Filter{ErrorCode: "422"}},
		"event id":       {header(envelope.KeyMessageID, "special"), dlq.Filter{EventID: "special"}},
		"source table":   {header("source_table", "employee"), dlq.Filter{SourceTable: "employee"}},
		"source id":      {header("source_id", "E-17"), dlq.Filter{SourceID: "E-17"}},
		"correlation id": {header("correlation_id", "c-9"), dlq.Filter{CorrelationID: "c-9"}},
		"trace id": {
			header(envelope.KeyTraceParent, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
			dlq.Filter{TraceID: "4bf92f3577b34da6a3ce929d0e0e4736"},
		},
		"error text":   {dies("CPF 100%_sure invalid"), dlq.Filter{ErrorText: "cpf 100%_SURE"}},
		"cause text":   {dies("no such customer 17"), dlq.Filter{CauseText: "such CUSTOMER"}},
		"payload text": {payload("\x00needle\xff"), dlq.Filter{PayloadText: "\x00needle\xff"}},
		"from":         {diedAt(noon.Add(time.Hour)), dlq.Filter{From: noon.Add(time.Hour)}},
		"to":           {diedAt(noon.Add(-time.Hour)), dlq.Filter{To: noon.Add(-time.Hour + time.Microsecond)}},
		"fingerprint": {
			dies("unique"),
			dlq.Filter{Fingerprint: dlq.Fingerprint("charge", "*main.TimeoutError", "504", "unique")},
		},
	}
	n := 10
	special := map[string]int64{}
	for name, c := range cases {
		n++
		special[name] = w.put(letter(n, c.edit))[0].ID
	}
	for name, c := range cases {
		require.Equal(w, []int64{special[name]}, ids(w.all(c.filter)), name)
	}
	total := len(cases) + 1
	require.Len(w, w.all(dlq.Filter{}), total)

	w.act(driver.ActionResolve, noon.Add(time.Hour), common)
	require.Equal(w, []int64{common}, ids(w.all(dlq.Filter{Statuses: []dlq.Status{dlq.Resolved}})))
	require.Equal(w, []int64{common}, ids(w.all(dlq.Filter{Statuses: []dlq.Status{dlq.Resolved, dlq.Discarded}})))
	require.Len(w, w.all(dlq.Filter{Statuses: []dlq.Status{dlq.Pending, dlq.Resolved, dlq.Pending}}), total)
	require.Equal(w, ids(w.all(dlq.Filter{})), ids(w.all(dlq.Filter{Statuses: wire.Statuses()})), "in the same order")
	require.Len(w, w.all(dlq.Filter{Topic: "orders"}), total-1, "with every status")
	require.Equal(w, []int64{common}, ids(w.all(dlq.Filter{ResolvedBefore: noon.Add(2 * time.Hour)})))
	require.Empty(w, w.all(dlq.Filter{ResolvedBefore: noon.Add(time.Hour)}))
	require.Equal(w, []int64{special["to"]}, ids(w.all(dlq.Filter{DiedBefore: noon.Add(-time.Hour + time.Microsecond)})))
	require.Empty(w, w.all(dlq.Filter{DiedBefore: noon.Add(-time.Hour)}))
	w.mustChange(driver.Change{Action: driver.ActionRedrive, IDs: []int64{special["handler"]}, Run: "run-1"})
	require.Equal(w, []int64{special["handler"]}, ids(w.all(dlq.Filter{Run: "run-1"})))
	never, once := 0, 1
	require.Equal(w, []int64{special["handler"]}, ids(w.all(dlq.Filter{Redrives: &once})))
	require.Len(w, w.all(dlq.Filter{Redrives: &never}), total-1)
	require.Equal(w, []int64{common}, ids(w.all(dlq.Filter{IDs: []int64{common, 4711}})))
	require.Empty(w, w.all(dlq.Filter{IDs: []int64{}}), "an empty list of ids selects nothing")
	require.Empty(w, w.all(dlq.Filter{Topic: "employee-create", Handler: "refund"}), "filters are combined with AND")
	require.Empty(w, w.all(dlq.Filter{Handler: "' OR 1=1 --"}))
	require.Equal(w, []int64{special["error text"]}, ids(w.all(dlq.Filter{ErrorText: "%"})), "percent is literal")
	require.Empty(w, w.all(dlq.Filter{ErrorText: `\`}))
}

func (w *world) TestFilterRefusesInvalidValues() {
	for name, f := range map[string]dlq.Filter{
		"status":     {Statuses: []dlq.Status{"PENDIGN"}},
		"time range": {From: noon, To: noon},
	} {
		fails(w.List(w.Context(), f, dlq.Page{}))(w, dlq.ErrInvalid, name)
		fails(w.Count(w.Context(), f, 0))(w, dlq.ErrInvalid, name)
	}
	for name, p := range map[string]dlq.Page{
		"negative limit": {Limit: -1}, "huge limit": {Limit: driver.MaxPage + 1}, "order": {Order: "random"},
	} {
		fails(w.List(w.Context(), dlq.Filter{}, p))(w, dlq.ErrInvalid, name)
	}
}

// pages reads a listing to its end, and calls between before every page except the first.
func (w *world) pages(f dlq.Filter, p dlq.Page, between ...func()) []int64 {
	w.Helper()
	return ids(readAll(w, p, func(p dlq.Page) ([]dlq.Entry, string, error) {
		for _, do := range between {
			if p.After != "" {
				do()
			}
		}
		listing, err := w.List(w.Context(), f, p)
		return listing.Entries, listing.Next, err
	}))
}

func (w *world) putMany(from, to int, edits ...func(*envelope.DeadLetter)) []int64 {
	w.Helper()
	var list []int64
	for n := from; n < to; n++ {
		list = append(list, w.put(letter(n, edits...))[0].ID)
	}
	return list
}

func (w *world) TestPaging() {
	oldest := w.putMany(0, 23)
	newest := reversed(oldest)
	for _, limit := range []int{1, 5, 22, 23, 24} {
		require.Equal(w, newest, w.pages(dlq.Filter{}, dlq.Page{Limit: limit}))
		require.Equal(w, oldest, w.pages(dlq.Filter{Topic: "orders"}, dlq.Page{Limit: limit, Order: driver.OldestFirst}))
	}
	listing := must(w.List(w.Context(), dlq.Filter{Topic: "none"}, dlq.Page{}))(w)
	require.Empty(w, listing.Entries)
	require.Empty(w, listing.Next)
	// An entry that is stored late, from a spool, is the last in the order of storing, and at the time of its death in
	// the other order.
	late := w.put(letter(100, diedAt(noon.Add(-time.Hour))))
	stored := append(slices.Clone(oldest), late[0].ID)
	for _, f := range []dlq.Filter{{}, {Topic: "orders"}, {Statuses: wire.Statuses()}} {
		require.Equal(w, stored, w.pages(f, dlq.Page{Limit: 5, Order: driver.StoredFirst}))
		require.Equal(w, reversed(stored), w.pages(f, dlq.Page{Limit: 24, Order: driver.StoredLast}))
		require.Equal(w, late[0].ID, w.pages(f, dlq.Page{Limit: 5, Order: driver.OldestFirst})[0])
	}
}

func reversed(list []int64) []int64 {
	turned := slices.Clone(list)
	slices.Reverse(turned)
	return turned
}

// Entries that are added or change status while a person pages through a listing cause no repeated and no missing
// entries.
func (w *world) TestPagingUnderInserts() {
	there := w.putMany(0, 20)
	n := 100
	got := w.pages(dlq.Filter{Statuses: []dlq.Status{dlq.Pending}}, dlq.Page{Limit: 4}, func() {
		n++
		w.putMany(n, n+1)
		w.mustChange(driver.Change{Action: driver.ActionDiscard, IDs: there[19:20]})
		there = append([]int64{}, there...)
		w.mustChange(driver.Change{Action: driver.ActionRestore, IDs: there[19:20]})
	})
	require.Equal(w, reversed(there), got)
}

// Letters that died in the same microsecond are ordered by id.
func (w *world) TestPagingSameInstant() {
	same := w.putMany(0, 9, diedAt(noon))
	require.Equal(w, reversed(same), w.pages(dlq.Filter{}, dlq.Page{Limit: 2}))
	require.Equal(w, same, w.pages(dlq.Filter{}, dlq.Page{Limit: 2, Order: driver.OldestFirst}))
}

func (w *world) TestForgedCursor() {
	w.putMany(0, 3)
	listing := must(w.List(w.Context(), dlq.Filter{}, dlq.Page{Limit: 1}))(w)
	for name, cursor := range map[string]string{
		"text":        "first",
		"not base64":  "!!!!",
		"too short":   listing.Next[:8],
		"too long":    listing.Next + "AAAA",
		"no version":  base64.RawURLEncoding.EncodeToString(make([]byte, 18)),
		"sql":         "' OR 1=1 --",
		"huge":        strings.Repeat("A", 100_000),
		"other order": wire.Cursor{Order: driver.OldestFirst, At: noon, ID: 1}.String(),
	} {
		_, err := w.List(w.Context(), dlq.Filter{}, dlq.Page{After: cursor})
		require.ErrorIs(w, err, dlq.ErrInvalid, name)
		require.Less(w, len(err.Error()), 300, name)
	}
	// A valid cursor works even if there is no entry at its position.
	nowhere := wire.Cursor{Order: driver.NewestFirst, At: noon.Add(-time.Hour), ID: -5}
	listing = must(w.List(w.Context(), dlq.Filter{}, dlq.Page{After: nowhere.String()}))(w)
	require.Empty(w, listing.Entries)
}

func (w *world) TestCount() {
	w.putMany(0, 7)
	for limit, want := range map[int64]int64{0: 7, 3: 3, 7: 7, 100: 7} {
		require.Equal(w, want, must(w.Count(w.Context(), dlq.Filter{Topic: "orders"}, limit))(w), "limit %d", limit)
	}
	require.Zero(w, must(w.Count(w.Context(), dlq.Filter{Topic: "none"}, 0))(w))
}

// A store may count from its statistics by cause and hour; the result must be the same.
func (w *world) TestCountAgreesWithList() {
	list := w.putMany(0, 24, func(d *envelope.DeadLetter) {
		n := d.At.Sub(noon) / time.Second
		d.At = noon.Add(n * 17 * time.Minute)
		d.Origin.Topic = []string{"orders", "invoices"}[n%2]
		d.Err.Message = []string{"timeout after 5s", "invalid CPF", "CPF is missing"}[n%3]
	})
	w.act(driver.ActionResolve, noon.Add(100*time.Hour), list[3])
	w.act(driver.ActionDiscard, noon.Add(100*time.Hour), list[4])
	statuses := [][]dlq.Status{nil, {dlq.Pending}, {dlq.Pending, dlq.Resolved, dlq.Pending}}
	times := []time.Time{
		{},
		noon, noon.Truncate(time.Hour), noon.Add(time.Minute), noon.Add(2 * time.Hour),
		noon.Add(5*time.Hour + time.Microsecond),
	}
	fingerprint := w.get(list[1]).Fingerprint
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
			picked = append(picked, w.all(f))
		}
		for from := range times {
			for to := range times {
				with := (n + from + to) % len(statuses)
				f.From, f.To, f.Statuses = times[from], times[to], statuses[with]
				if f.Validate() != nil {
					continue
				}
				got := must(w.Count(w.Context(), f, 0))(w)
				want := slices.DeleteFunc(slices.Clone(picked[with]), func(e dlq.Entry) bool {
					return e.CreatedAt.Before(f.From) || !f.To.IsZero() && !e.CreatedAt.Before(f.To)
				})
				require.Len(w, want, int(got), "%+v", f)
				if n%5 == 0 {
					require.Len(w, w.all(f), int(got), "%+v", f)
				}
			}
		}
	}
}

func (w *world) TestCancelledContext() {
	id := w.put(letter(1))[0].ID
	ctx, cancel := context.WithCancel(w.Context())
	cancel()
	fails(w.Put(ctx, letter(2)))(w, context.Canceled)
	fails(w.Get(ctx, id))(w, context.Canceled)
	resolve := driver.Change{Action: driver.ActionResolve, IDs: []int64{id}, Actor: "ana", At: noon}
	fails(w.Change(ctx, resolve))(w, context.Canceled)
	// The store still works.
	require.Equal(w, dlq.Pending, w.get(id).Status)
	w.put(letter(3))
}

func (w *world) TestSurvivesReopen() {
	id := w.put(letter(1))[0].ID
	w.mustChange(driver.Change{Action: driver.ActionDiscard, IDs: []int64{id}})
	want := w.get(id)
	require.NoError(w, w.Close())
	second := w.on(w.open())
	require.Equal(w, want, second.get(id))
	require.Equal(w, driver.Seen, second.put(letter(1))[0].Result)
}

func (w *world) TestClose() {
	require.NoError(w, w.Ping(w.Context()))
	require.NoError(w, w.Close())
	require.NoError(w, w.Close())
	fails(w.Put(w.Context(), letter(1)))(w, dlq.ErrClosed)
	fails(w.Get(w.Context(), 1))(w, dlq.ErrClosed)
	fails(w.List(w.Context(), dlq.Filter{}, dlq.Page{}))(w, dlq.ErrClosed)
	require.ErrorIs(w, w.Ping(w.Context()), dlq.ErrClosed)
}
