package dlqtest

import (
	"bytes"
	"encoding/json"
	"reflect"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// An import stores entries as they were, once, and either all or none of them.
func testImport(w *world) {
	w.put(letter(50)) // so that ids differ
	parked := letter(1)
	parked.Status, parked.Version, parked.RedriveCount, parked.Revision, parked.ChangedBy = dlq.Parked, 9, 3, 1, "bob"
	first, second := *parked.Body, *parked.Body
	second.Revision, second.Payload = 1, []byte("\xff")
	parked.Size = 1
	parked.Body = nil
	exported := driver.Exported{Entry: *parked, Bodies: []dlq.Body{first, second}}
	by := dlq.By{Actor: "ana", Note: "moved"}
	receipts := must(w.Import(w.Context(), by, noon, exported, exported))(w)
	require.Equal(w, []driver.Receipt{
		{ID: receipts[0].ID, Result: driver.Stored},
		{ID: receipts[0].ID, Result: driver.Seen},
	}, receipts)
	got := w.get(receipts[0].ID)
	want := *parked
	want.ID, want.Body = receipts[0].ID, &second
	require.Equal(w, &want, got)
	require.Equal(w, &first, must(w.Body(w.Context(), got.ID, 0))(w))
	receipts = must(w.Import(w.Context(), by, noon, exported))(w)
	require.Equal(w, driver.Receipt{ID: got.ID, Result: driver.Seen}, receipts[0])
	require.Equal(w, got, w.get(got.ID), "an existing entry is not changed")
	require.Equal(w, driver.Counts{Pending: 1, Parked: 1}, must(w.Stats(w.Context(), dlq.StatsQuery{}))(w).Counts)

	bad := exported
	bad.Entry.Key = driver.Key{}
	other := driver.Exported{Entry: *letter(2), Bodies: []dlq.Body{*letter(2).Body}}
	_, err := w.Import(w.Context(), by, noon, other, bad)
	require.ErrorIs(w, err, dlq.ErrInvalid)
	_, err = w.Import(w.Context(), dlq.By{}, noon, other)
	require.ErrorIs(w, err, dlq.ErrInvalid)
	require.Len(w, w.all(dlq.Filter{}), 2)
}

// Every field of an entry, including any added later, survives an export, the store and the archive.
func testEveryColumn(w *world) {
	e := letter(1)
	e.Status, e.Body.Revision = dlq.Resolved, 7
	fill(w, reflect.ValueOf(e).Elem())
	e.ID, e.RedriveOf = 0, 0 // assigned by the store; and fields of a letter before it is stored
	o := &e.Origin
	o.Incarnation, o.Redelivered, o.DeliveryCount = "", false, 0 // of the delivery
	require.Equal(w, e.Revision, e.Body.Revision)

	bodies := make([]dlq.Body, e.Revision+1)
	for n := range bodies {
		bodies[n] = *e.Body
		bodies[n].Revision = n
	}
	line := must(json.Marshal((&driver.Exported{Entry: *e, Bodies: bodies}).Wire()))(w)
	var read wire.Letter
	require.NoError(w, json.Unmarshal(line, &read))
	exported := driver.Exported{Bodies: bodies}
	exported.Entry.SetWire(&read.Entry)
	exported.Entry.Body = e.Body
	require.Equal(w, *e, exported.Entry, "the JSON form")

	receipts := must(w.Import(w.Context(), dlq.By{Actor: "ana"}, noon, exported))(w)
	e.ID = receipts[0].ID
	require.Equal(w, e, w.get(e.ID), "the store")
	archive, ok := driver.As[driver.ArchiveStore](w.Store)
	if !ok {
		return
	}
	later := noon.Add(24 * time.Hour)
	require.Equal(w, 1, must(w.Purge(w.Context(), dlq.Purge{ClosedBefore: later, Actor: "ana", At: later}))(w))
	must(archive.Unarchive(w.Context(), dlq.By{Actor: "bob"}, later, e.ID))(w)
	back := w.get(e.ID)
	// Restoring an entry is a change, so these differ.
	e.Version, e.ResolvedAt, e.ChangedAt, e.ChangedBy = back.Version, back.ResolvedAt, back.ChangedAt, back.ChangedBy
	require.Equal(w, e, back, "the archive")
}

// fill sets every empty field of an entry, including those of its origin.
func fill(w *world, entry reflect.Value) {
	w.Helper()
	for i := range entry.NumField() {
		name, field := entry.Type().Field(i).Name, entry.Field(i)
		if !field.IsZero() && field.Type() != reflect.TypeFor[envelope.Origin]() {
			continue
		}
		switch to := field.Addr().Interface().(type) {
		case *envelope.Origin:
			fill(w, field)
		case *time.Time:
			*to = noon.Add(time.Duration(i) * time.Minute)
		case *[]byte:
			*to = bytes.Repeat([]byte{0xff}, i)
		case **int32:
			*to = new(int32)
		case **int64:
			*to = new(int64)
		case *bool:
			*to = true
		default:
			switch field.Kind() {
			case reflect.String:
				field.SetString(name)
			case reflect.Int, reflect.Int64:
				field.SetInt(7)
			default:
				w.Fatalf("%s: fill has no value for kind %s", name, field.Type())
			}
		}
	}
}
