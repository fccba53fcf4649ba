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

// A filter on a field of the JSON payload selects the letters that have the value there, including in arrays, and with
// the right type. It never selects a payload that is not JSON, is truncated or only looks similar.
func (w *world) TestPayloadFields() {
	payloads := map[string]string{
		"number":   `{"customer":{"id":42,"name":"Ana \"A\" Silva"},"items":[{"sku":"A-7","tags":["new","x"]},{"sku":"B-1"}],"total":10.50,"paid":true,"code":null}`,
		"text":     `{"customer":{"id":"42","name":"ana"},"items":[],"total":"10.5","paid":"true","code":"null"}`,
		"other":    `{"customer":{"id":421,"name":"4\u00e9"},"items":{"sku":"A-70"},"total":1050,"paid":false}`,
		"shape":    `{"customer":[{"id":7},{"id":43}],"id":42,"items":"A-7","a.b":{"c d":1},"$x":"=y"}`,
		"deeper":   `{"order":{"customer":{"id":42}}}`,
		"list":     `[{"customer":{"id":44}},{"customer":{"id":45}}]`,
		"scalar":   `"customer"`,
		"cut off":  `{"customer":{"id":42}`,
		"binary":   "\xff\x00{\"customer\":{\"id\":42}}",
		"empty":    "",
		"long":     `{"customer":{"id":46},"rest":"` + strings.Repeat("x", 100_000) + `"}`,
		"negative": `{"balance":-1.5e2,"big":9007199254740993}`,
		"php":      `{"path":"\/srv\/caf\u00e9","face":"\ud83d\ude00"}`,
		"python":   `{"path":"/srv/caf\u00e9","face":"\ud83d\ude00"}`,
		"go":       `{"path":"/srv/café","face":"😀","html":"\u003cb\u003e"}`,
		"java":     `{"path":"/srv/café","face":"😀","html":"<b>"}`,
	}
	// Payloads that databases refuse as JSON are also in the store, and must not make a search fail.
	for name, p := range Payloads() {
		if len(p) < 1<<20 {
			payloads["hostile: "+name] = string(p)
		}
	}
	n := 1
	id := map[string]int64{}
	for name, text := range payloads {
		n++
		id[name] = w.put(letter(n, payload(text)))[0].ID
	}
	for text, want := range map[string][]string{
		"customer.id=42":                  {"number", "text"},
		`customer.id="42"`:                {"text"},
		"customer.id=42.0":                {"number"}, // as a number, as no text is 42.0
		"customer.id=4":                   nil,
		"customer.id=43":                  {"shape"},
		"customer.id=45":                  {"list"},
		"customer.id=46":                  {"long"},
		"id=42":                           {"shape"},
		`customer.name="Ana \"A\" Silva"`: {"number"},
		`customer.name=Ana "A" Silva`:     {"number"},
		"customer.name=Ana":               nil,
		"customer.name=ANA":               nil,
		"customer.name=4é":                {"other"},
		"customer.name='; DROP TABLE x":   nil,
		"customer={}":                     nil,
		"items.sku=A-7":                   {"number"},
		"items.tags=x":                    {"number"},
		"items.sku=A-70":                  {"other"},
		"items=A-7":                       {"shape"},
		"items.sku.none=1":                nil,
		"total=10.5":                      {"number", "text"},
		"paid=true":                       {"number", "text"},
		`paid="true"`:                     {"text"},
		"paid=false":                      {"other"},
		"paid=1":                          nil,
		"code=null":                       {"number", "text"},
		"missing=null":                    nil,
		`"a.b".c d=1`:                     {"shape"},
		`"$x"="=y"`:                       {"shape"},
		"balance=-150":                    {"negative"},
		"big=9007199254740993":            {"negative"},
		"path=/srv/café":                  {"php", "python", "go", "java"},
		"face=😀":                          {"php", "python", "go", "java"},
		"html=<b>":                        {"go", "java"},
	} {
		field, err := wire.ParsePayloadField(text)
		require.NoError(w, err, text)
		var wanted []int64
		for _, name := range want {
			wanted = append(wanted, id[name])
		}
		f := dlq.Filter{PayloadFields: []wire.PayloadField{field}}
		require.ElementsMatch(w, wanted, ids(w.all(f)), text)
		require.EqualValues(w, len(want), must(w.Count(w.Context(), f, 0))(w), text)
	}
	both := dlq.Filter{Topic: "orders", PayloadFields: []wire.PayloadField{
		{Path: []string{"customer", "id"}, Value: "42"}, {Path: []string{"paid"}, Value: `"true"`},
	}}
	require.Equal(w, []int64{id["text"]}, ids(w.all(both)), "fields are combined with AND")
	forged := wire.PayloadField{Path: []string{`a"] || true`}, Value: "1"}
	fails(w.List(w.Context(), dlq.Filter{PayloadFields: []wire.PayloadField{forged}}, dlq.Page{}))(w, dlq.ErrInvalid)
}

// A search finds an error regardless of accents and letter case. All other characters are matched literally.
func (w *world) TestSearchIgnoresAccents() {
	failed := func(n int, text string) int64 { return w.put(letter(n, dies(text)))[0].ID }
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
