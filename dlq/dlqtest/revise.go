package dlqtest

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// An edit adds a new revision by compare-and-set; every revision is kept.
func testRevise(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	before := get(t, s, id)
	revision := driver.Revision{
		EntryID: id, Version: 1, Body: &dlq.Body{
			UUID: "u", Payload: []byte("\x00one"), Headers: map[string]string{"h": "\xff"},
		},
		Actor: "bob", Note: "typo", Detail: map[string]string{"diff": "…"}, At: noon.Add(time.Hour),
	}
	e := must(s.Revise(t.Context(), revision))(t)
	require.Equal(t, []any{1, int64(4), int64(2), dlq.Pending, "bob"},
		[]any{e.Revision, e.Size, e.Version, e.Status, e.ChangedBy})
	_, err := s.Revise(t.Context(), revision)
	var conflict *driver.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, "bob", conflict.By)
	revision.Version = 0
	must(s.Revise(t.Context(), revision))(t)
	require.Equal(t, 2, get(t, s, id).Revision)
	require.Equal(t, before.Body, must(s.Body(t.Context(), id, 0))(t))
	records := recorded(t, s, dlq.AuditFilter{Action: driver.ActionEdit}, dlq.Page{Order: driver.OldestFirst})
	require.Len(t, records, 2)
	require.Equal(t, map[string]string{"diff": "…", "revision": "1"}, records[0].Detail)
	claim(t, s, id, noon.Add(2*time.Hour))
	_, err = s.Revise(t.Context(), revision)
	require.ErrorIs(t, err, dlq.ErrConflict, "it is in flight")
	revision.EntryID = 4711
	_, err = s.Revise(t.Context(), revision)
	require.ErrorIs(t, err, dlq.ErrNotFound)
	for _, bad := range []driver.Revision{
		{EntryID: id},
		{EntryID: id, Body: &dlq.Body{}, At: noon},
		{EntryID: id, Body: &dlq.Body{}, Actor: "ana"},
	} {
		_, err = s.Revise(t.Context(), bad)
		require.ErrorIs(t, err, dlq.ErrInvalid)
	}
}

// A redrive goes to where the consumer's broker got the message, even after an edit and a restore from the archive, and
// never to where a header claims.
func testRedriveTo(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	const to = "orders.billing_again.100"
	id := put(t, s, letter(1, func(d *envelope.DeadLetter) {
		d.Origin.RedriveTo = to
		d.Message.Metadata["redrive_to"], d.Message.Metadata["x-redrive-to"] = "forged", "forged"
	}))[0].ID
	manager := must(dlq.NewManager(dlq.ManagerConfig{Store: s}))(t)
	_, _, err := manager.Edit(t.Context(), id, dlq.Edit{Payload: []byte("{}")}, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	require.Equal(t, to, get(t, s, id).Origin.RedriveTo, "edited")
	require.Equal(t, to, all(t, s, dlq.Filter{})[0].Origin.RedriveTo, "listed")
	require.Empty(t, get(t, s, put(t, s, letter(2))[0].ID).Origin.RedriveTo, "unknown destination")
	require.Equal(t, driver.Receipt{ID: id, Result: driver.Seen}, put(t, s, letter(1))[0],
		"as it was at its first death")
	require.Equal(t, to, get(t, s, id).Origin.RedriveTo)

	archive, ok := driver.As[driver.ArchiveStore](s)
	if !ok {
		return
	}
	mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: []int64{id}, At: noon})
	must(s.Purge(t.Context(), dlq.Purge{ClosedBefore: noon.Add(time.Hour), Actor: "ana", At: noon.Add(time.Hour)}))(t)
	must(archive.Unarchive(t.Context(), dlq.By{Actor: "ana"}, noon.Add(2*time.Hour), id))(t)
	require.Equal(t, to, get(t, s, id).Origin.RedriveTo, "from the archive")
}

// A letter that is exported from one database and imported into another is the same letter there, including its origin,
// the destination of a redrive, and where a collector found it.
func testTransfer(t *testing.T, from, to Database) {
	t.Helper()
	s, other := from.open(t), to.open(t)
	id := put(t, s, letter(1, func(d *envelope.DeadLetter) {
		d.Origin.RedriveTo = "orders.billing_again.100"
		d.Collected = envelope.Collected{Broker: "west \xff", From: "orders_dlq", Format: "spring-kafka"}
	}))[0].ID
	exporter := must(dlq.NewManager(dlq.ManagerConfig{Store: s}))(t)
	_, _, err := exporter.Edit(t.Context(), id, dlq.Edit{Payload: []byte("{}")}, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	var export bytes.Buffer
	must(exporter.Export(t.Context(), &export, dlq.Filter{}))(t)

	require.Empty(t, all(t, other, dlq.Filter{}), "another database")
	importer := must(dlq.NewManager(dlq.ManagerConfig{Store: other}))(t)
	require.EqualValues(t, 1, must(importer.Import(t.Context(), &export, dlq.By{Actor: "ana"}))(t).Stored)
	want, got := get(t, s, id), get(t, other, all(t, other, dlq.Filter{})[0].ID)
	require.Equal(t, want.Origin, got.Origin)
	require.Equal(t, want.Body, got.Body)
	require.Equal(t, want.Revision, got.Revision)
	original := must(other.Body(t.Context(), got.ID, 0))(t)
	require.Equal(t, want.Body.Collected, original.Collected, "also of the first revision")
}

// The place where a collector found a message is stored with it, is not a header, and survives an edit, a second death,
// an export and the archive.
func testCollected(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	where := envelope.Collected{Broker: "west \xff", From: "orders_dlq", Format: "spring-kafka"}
	id := put(t, s, letter(1, func(d *envelope.DeadLetter) { d.Collected = where }))[0].ID
	check := func(s dlq.Store, id int64, revision int, when string) {
		t.Helper()
		body := must(s.Body(t.Context(), id, revision))(t)
		require.Equal(t, where, body.Collected, when)
	}
	check(s, id, 0, "stored")
	manager := must(dlq.NewManager(dlq.ManagerConfig{Store: s}))(t)
	_, _, err := manager.Edit(t.Context(), id, dlq.Edit{Payload: []byte("{}")}, dlq.By{Actor: "ana"})
	require.NoError(t, err)
	check(s, id, 1, "edited")
	require.Equal(t, where, driver.CollectedFrom(dlq.RedriveMessage(get(t, s, id)).Context()), "redriven")

	var export bytes.Buffer
	must(manager.Export(t.Context(), &export, dlq.Filter{}))(t)
	mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: []int64{id}, At: noon})
	must(s.Purge(t.Context(), dlq.Purge{ClosedBefore: noon.Add(time.Hour), Actor: "ana", At: noon.Add(time.Hour)}))(t)
	if archive, ok := driver.As[driver.ArchiveStore](s); ok {
		back := must(archive.Unarchive(t.Context(), dlq.By{Actor: "ana"}, noon.Add(2*time.Hour), id))(t)
		require.Equal(t, []int64{id}, back)
		check(s, id, 0, "from the archive")
		check(s, id, 1, "from the archive")
		later := noon.Add(24 * time.Hour)
		must(s.Purge(t.Context(), dlq.Purge{ClosedBefore: later, SkipArchive: true, Actor: "ana", At: later}))(t)
		if _, err := s.Get(t.Context(), id); err == nil {
			return // restored entries are not purged at once, and an import would find them
		}
	}
	must(manager.Import(t.Context(), &export, dlq.By{Actor: "ana"}))(t)
	check(s, all(t, s, dlq.Filter{})[0].ID, 1, "imported")
}
