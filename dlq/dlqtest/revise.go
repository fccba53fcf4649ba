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

// An edit adds a new revision by compare-and-set; every revision is kept.
func (w *world) TestRevise() {
	id := w.put(letter(1))[0].ID
	before := w.get(id)
	revision := driver.Revision{
		EntryID: id, Version: 1,
		Body:  &dlq.Body{UUID: "u", Payload: []byte("\x00one"), Headers: map[string]string{"h": "\xff"}},
		Actor: "bob", Note: "typo", Detail: map[string]string{"diff": "…"}, At: noon.Add(time.Hour),
	}
	e := must(w.Revise(w.Context(), revision))(w)
	require.Equal(w, []any{1, int64(4), int64(2), dlq.Pending, "bob"},
		[]any{e.Revision, e.Size, e.Version, e.Status, e.ChangedBy})
	_, err := w.Revise(w.Context(), revision)
	var conflict *driver.ConflictError
	require.ErrorAs(w, err, &conflict)
	require.Equal(w, "bob", conflict.By)
	revision.Version = 0
	must(w.Revise(w.Context(), revision))(w)
	require.Equal(w, 2, w.get(id).Revision)
	require.Equal(w, before.Body, must(w.Body(w.Context(), id, 0))(w))
	records := w.recorded(2, dlq.AuditFilter{Action: driver.ActionEdit}, dlq.Page{Order: driver.OldestFirst})
	require.Equal(w, map[string]string{"diff": "…", "revision": "1"}, records[0].Detail)
	w.claim(id, noon.Add(2*time.Hour))
	fails(w.Revise(w.Context(), revision))(w, dlq.ErrConflict, "it is in flight")
	revision.EntryID = 4711
	fails(w.Revise(w.Context(), revision))(w, dlq.ErrNotFound)
	for _, bad := range []driver.Revision{
		{EntryID: id}, {EntryID: id, Body: &dlq.Body{}, At: noon}, {EntryID: id, Body: &dlq.Body{}, Actor: "ana"},
	} {
		fails(w.Revise(w.Context(), bad))(w, dlq.ErrInvalid)
	}
}

// A redrive goes to where the consumer's broker got the message, even after an edit and a restore from the archive, and
// never to where a header claims.
func (w *world) TestRedriveTo() {
	const to = "orders.billing_again.100"
	id := w.put(letter(1, func(d *envelope.DeadLetter) {
		d.Origin.RedriveTo = to
		d.Message.Metadata["redrive_to"], d.Message.Metadata["x-redrive-to"] = "forged", "forged"
	}))[0].ID
	manager := must(dlq.NewManager(dlq.ManagerConfig{Store: w.Store}))(w)
	_, _, err := manager.Edit(w.Context(), id, dlq.Edit{Payload: []byte("{}")}, dlq.By{Actor: "ana"})
	require.NoError(w, err)
	require.Equal(w, to, w.get(id).Origin.RedriveTo, "edited")
	require.Equal(w, to, w.all(dlq.Filter{})[0].Origin.RedriveTo, "listed")
	require.Empty(w, w.get(w.put(letter(2))[0].ID).Origin.RedriveTo, "unknown destination")
	require.Equal(w, driver.Receipt{ID: id, Result: driver.Seen}, w.put(letter(1))[0], "as it was at its first death")
	require.Equal(w, to, w.get(id).Origin.RedriveTo)

	archive, ok := driver.As[driver.ArchiveStore](w.Store)
	if !ok {
		return
	}
	w.act(driver.ActionResolve, noon, id)
	w.purge(noon.Add(time.Hour), noon.Add(time.Hour))
	must(archive.Unarchive(w.Context(), dlq.By{Actor: "ana"}, noon.Add(2*time.Hour), id))(w)
	require.Equal(w, to, w.get(id).Origin.RedriveTo, "from the archive")
}

// A letter that is exported from one database and imported into another is the same letter there, including its origin,
// the destination of a redrive, and where a collector found it.
func (w *world) TestTransfer() {
	other := newWorld(w.T, w.fresh(w.T))
	id := w.put(letter(1, func(d *envelope.DeadLetter) {
		d.Origin.RedriveTo = "orders.billing_again.100"
		d.Collected = envelope.Collected{Broker: "west \xff", From: "orders_dlq", Format: "spring-kafka"}
	}))[0].ID
	exporter := must(dlq.NewManager(dlq.ManagerConfig{Store: w.Store}))(w)
	_, _, err := exporter.Edit(w.Context(), id, dlq.Edit{Payload: []byte("{}")}, dlq.By{Actor: "ana"})
	require.NoError(w, err)
	var export bytes.Buffer
	must(exporter.Export(w.Context(), &export, dlq.Filter{}))(w)

	require.Empty(w, other.all(dlq.Filter{}), "another database")
	importer := must(dlq.NewManager(dlq.ManagerConfig{Store: other.Store}))(w)
	require.EqualValues(w, 1, must(importer.Import(w.Context(), &export, dlq.By{Actor: "ana"}))(w).Stored)
	want, got := w.get(id), other.get(other.all(dlq.Filter{})[0].ID)
	require.Equal(w, want.Origin, got.Origin)
	require.Equal(w, want.Body, got.Body)
	require.Equal(w, want.Revision, got.Revision)
	original := must(other.Body(w.Context(), got.ID, 0))(w)
	require.Equal(w, want.Body.Collected, original.Collected, "also of the first revision")
}

// The place where a collector found a message is stored with it, is not a header, and survives an edit, a second death,
// an export and the archive.
func (w *world) TestCollected() {
	where := envelope.Collected{Broker: "west \xff", From: "orders_dlq", Format: "spring-kafka"}
	id := w.put(letter(1, func(d *envelope.DeadLetter) { d.Collected = where }))[0].ID
	check := func(id int64, revision int, when string) {
		w.Helper()
		require.Equal(w, where, must(w.Body(w.Context(), id, revision))(w).Collected, when)
	}
	check(id, 0, "stored")
	manager := must(dlq.NewManager(dlq.ManagerConfig{Store: w.Store}))(w)
	_, _, err := manager.Edit(w.Context(), id, dlq.Edit{Payload: []byte("{}")}, dlq.By{Actor: "ana"})
	require.NoError(w, err)
	check(id, 1, "edited")
	require.Equal(w, where, driver.CollectedFrom(dlq.RedriveMessage(w.get(id)).Context()), "redriven")

	var export bytes.Buffer
	must(manager.Export(w.Context(), &export, dlq.Filter{}))(w)
	w.act(driver.ActionResolve, noon, id)
	w.purge(noon.Add(time.Hour), noon.Add(time.Hour))
	if archive, ok := driver.As[driver.ArchiveStore](w.Store); ok {
		by := dlq.By{Actor: "ana"}
		require.Equal(w, []int64{id}, must(archive.Unarchive(w.Context(), by, noon.Add(2*time.Hour), id))(w))
		check(id, 0, "from the archive")
		check(id, 1, "from the archive")
		later := noon.Add(24 * time.Hour)
		must(w.Purge(w.Context(), dlq.Purge{ClosedBefore: later, SkipArchive: true, Actor: "ana", At: later}))(w)
		if _, err := w.Get(w.Context(), id); err == nil {
			return // restored entries are not purged at once, and an import would find them
		}
	}
	must(manager.Import(w.Context(), &export, dlq.By{Actor: "ana"}))(w)
	check(w.all(dlq.Filter{})[0].ID, 1, "imported")
}

// An import stores entries as they were, once, and either all or none of them.
func (w *world) TestImport() {
	w.put(letter(50)) // so that ids differ
	parked := letter(1)
	parked.Status, parked.Version, parked.RedriveCount, parked.Revision, parked.ChangedBy = dlq.Parked, 9, 3, 1, "bob"
	first, second := *parked.Body, *parked.Body
	second.Revision, second.Payload = 1, []byte("\xff")
	parked.Size, parked.Body = 1, nil
	exported := driver.Exported{Entry: *parked, Bodies: []dlq.Body{first, second}}
	by := dlq.By{Actor: "ana", Note: "moved"}
	receipts := must(w.Import(w.Context(), by, noon, exported, exported))(w)
	require.Equal(w, []driver.Receipt{
		{ID: receipts[0].ID, Result: driver.Stored},
		{ID: receipts[0].ID, Result: driver.Seen},
	}, receipts)
	got := w.get(receipts[0].ID)
	parked.ID, parked.Body = receipts[0].ID, &second
	require.Equal(w, parked, got)
	require.Equal(w, &first, must(w.Body(w.Context(), got.ID, 0))(w))
	receipts = must(w.Import(w.Context(), by, noon, exported))(w)
	require.Equal(w, driver.Receipt{ID: got.ID, Result: driver.Seen}, receipts[0])
	require.Equal(w, got, w.get(got.ID), "an existing entry is not changed")
	require.Equal(w, driver.Counts{Pending: 1, Parked: 1}, must(w.Stats(w.Context(), dlq.StatsQuery{}))(w).Counts)

	w.mustChange(driver.Change{Action: driver.ActionResolve, IDs: []int64{got.ID}, At: noon})
	require.Equal(w, 1, w.purge(noon.Add(time.Hour), noon.Add(time.Hour)))
	if _, ok := driver.As[driver.ArchiveStore](w.Store); ok { // only Unarchive restores it
		require.Equal(w, receipts, must(w.Import(w.Context(), by, noon, exported))(w), "purged")
	}
	bad := exported
	bad.Entry.Key = driver.Key{}
	other := driver.Exported{Entry: *letter(2), Bodies: []dlq.Body{*letter(2).Body}}
	fails(w.Import(w.Context(), by, noon, other, bad))(w, dlq.ErrInvalid)
	fails(w.Import(w.Context(), dlq.By{}, noon, other))(w, dlq.ErrInvalid)
	require.Len(w, w.all(dlq.Filter{}), 1)
}

// Every field of an entry, including any added later, survives an export, the store and the archive.
func (w *world) TestEveryColumn() {
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
	require.Equal(w, 1, w.purge(later, later))
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
