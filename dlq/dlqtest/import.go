package dlqtest

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// An import stores entries as they were, once, and either all or none of them.
func testImport(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	put(t, s, letter(50)) // so that ids differ
	parked := letter(1)
	parked.Status, parked.Version, parked.RedriveCount, parked.Revision, parked.ChangedBy = dlq.Parked, 9, 3, 1, "bob"
	first, second := *parked.Body, *parked.Body
	second.Revision, second.Payload = 1, []byte("\xff")
	parked.Size = 1
	parked.Body = nil
	exported := driver.Exported{Entry: *parked, Bodies: []dlq.Body{first, second}}
	by := dlq.By{Actor: "ana", Note: "moved"}
	receipts := must(s.Import(t.Context(), by, noon, exported, exported))(t)
	require.Equal(t, []driver.Receipt{
		{ID: receipts[0].ID, Result: driver.Stored},
		{ID: receipts[0].ID, Result: driver.Seen},
	}, receipts)
	got := get(t, s, receipts[0].ID)
	want := *parked
	want.ID, want.Body = receipts[0].ID, &second
	require.Equal(t, &want, got)
	require.Equal(t, &first, must(s.Body(t.Context(), got.ID, 0))(t))
	receipts = must(s.Import(t.Context(), by, noon, exported))(t)
	require.Equal(t, driver.Receipt{ID: got.ID, Result: driver.Seen}, receipts[0])
	require.Equal(t, got, get(t, s, got.ID), "an existing entry is not changed")
	require.Equal(t, driver.Counts{Pending: 1, Parked: 1}, must(s.Stats(t.Context(), dlq.StatsQuery{}))(t).Counts)

	bad := exported
	bad.Entry.Key = driver.Key{}
	other := driver.Exported{Entry: *letter(2), Bodies: []dlq.Body{*letter(2).Body}}
	_, err := s.Import(t.Context(), by, noon, other, bad)
	require.ErrorIs(t, err, dlq.ErrInvalid)
	_, err = s.Import(t.Context(), dlq.By{}, noon, other)
	require.ErrorIs(t, err, dlq.ErrInvalid)
	require.Len(t, all(t, s, dlq.Filter{}), 2)
}

// Every field of an entry, including any added later, survives an export, the store and the archive.
func testEveryColumn(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	e := letter(1)
	e.Status, e.Body.Revision = dlq.Resolved, 7
	fill(t, reflect.ValueOf(e).Elem())
	e.ID, e.RedriveOf = 0, 0 // assigned by the store; and fields of a letter before it is stored
	o := &e.Origin
	o.Incarnation, o.Redelivered, o.DeliveryCount = "", false, 0 // of the delivery
	require.Equal(t, e.Revision, e.Body.Revision)

	bodies := make([]dlq.Body, e.Revision+1)
	for n := range bodies {
		bodies[n] = *e.Body
		bodies[n].Revision = n
	}
	line := must(json.Marshal((&driver.Exported{Entry: *e, Bodies: bodies}).Wire()))(t)
	var read wire.Letter
	require.NoError(t, json.Unmarshal(line, &read))
	exported := driver.Exported{Bodies: bodies}
	exported.Entry.SetWire(&read.Entry)
	exported.Entry.Body = e.Body
	require.Equal(t, *e, exported.Entry, "the JSON form")

	receipts := must(s.Import(t.Context(), dlq.By{Actor: "ana"}, noon, exported))(t)
	e.ID = receipts[0].ID
	require.Equal(t, e, get(t, s, e.ID), "the store")
	archive, ok := driver.As[driver.ArchiveStore](s)
	if !ok {
		return
	}
	later := noon.Add(24 * time.Hour)
	require.Equal(t, 1, must(s.Purge(t.Context(), dlq.Purge{ClosedBefore: later, Actor: "ana", At: later}))(t))
	must(archive.Unarchive(t.Context(), dlq.By{Actor: "bob"}, later, e.ID))(t)
	back := get(t, s, e.ID)
	// Restoring an entry is a change, so these differ.
	e.Version, e.ResolvedAt, e.ChangedAt, e.ChangedBy = back.Version, back.ResolvedAt, back.ChangedAt, back.ChangedBy
	require.Equal(t, e, back, "the archive")
}

// fill sets every empty field of an entry, including those of its origin.
func fill(t *testing.T, entry reflect.Value) {
	t.Helper()
	for i := range entry.NumField() {
		name, field := entry.Type().Field(i).Name, entry.Field(i)
		if !field.IsZero() && field.Type() != reflect.TypeFor[envelope.Origin]() {
			continue
		}
		switch to := field.Addr().Interface().(type) {
		case *envelope.Origin:
			fill(t, field)
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
				t.Fatalf("%s: fill has no value for kind %s", name, field.Type())
			}
		}
	}
}
