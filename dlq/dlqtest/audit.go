package dlqtest

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// Every transition is recorded, with the actor, time, action, note, and the statuses before and after.
func testAudit(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	other := put(t, s, letter(2))[0].ID
	at := noon.Add(time.Hour)
	mustChange(t, s, driver.Change{
		Action: driver.ActionDiscard, IDs: []int64{id}, Actor: "bob", Note: "a test order", At: at,
	})
	mustChange(t, s, driver.Change{
		Action: driver.ActionRestore, IDs: []int64{id}, Actor: "ana", Note: "it was not", At: at.Add(time.Minute),
	})
	mustChange(t, s, driver.Change{
		Action: driver.ActionRedrive, IDs: []int64{id}, Actor: "ana", At: at.Add(2 * time.Minute),
	})
	died := redriven(get(t, s, id), at.Add(3*time.Minute), func(d *envelope.DeadLetter) { d.Err.Message = "closed" })
	put(t, s, died)
	_, err := change(t, s, driver.Change{
		Action: driver.ActionRestore, IDs: []int64{id}, Actor: "eve", At: at.Add(4 * time.Minute),
	})
	require.ErrorIs(t, err, dlq.ErrConflict, "a refused action is not recorded")
	mustChange(t, s, driver.Change{Action: driver.ActionDiscard, IDs: []int64{other}, Actor: "bob", At: at})

	records, next, err := s.Audit(t.Context(), dlq.AuditFilter{EntryID: id}, dlq.Page{Order: driver.OldestFirst})
	require.NoError(t, err)
	require.Empty(t, next)
	for i := range records {
		require.NotZero(t, records[i].ID)
		records[i].ID = 0
	}
	require.Equal(t, []driver.AuditRecord{
		{
			At: at, Actor: "bob", Action: driver.ActionDiscard, Note: "a test order", EntryID: id, From: dlq.Pending,
			To: dlq.Discarded, Version: 2,
		},
		{
			At: at.Add(time.Minute), Actor: "ana", Action: driver.ActionRestore, Note: "it was not", EntryID: id,
			From: dlq.Discarded, To: dlq.Pending, Version: 3,
		},
		{
			At: at.Add(2 * time.Minute), Actor: "ana", Action: driver.ActionRedrive, EntryID: id, From: dlq.Pending,
			To: dlq.Retrying, Version: 4,
		},
		{
			At: at.Add(3 * time.Minute), Actor: "consumer billing", Action: driver.ActionDie, EntryID: id,
			From: dlq.Retrying, To: dlq.Pending, Version: 5,
			Detail: map[string]string{"error": "closed", "previous_error": "payment 1: timeout after 101ms"},
		},
	}, records)

	for name, c := range map[string]struct {
		filter dlq.AuditFilter
		want   int
	}{
		"all":    {dlq.AuditFilter{}, 5},
		"actor":  {dlq.AuditFilter{Actor: "bob"}, 2},
		"action": {dlq.AuditFilter{Action: driver.ActionRestore}, 1},
		"time":   {dlq.AuditFilter{From: at, To: at.Add(time.Minute)}, 2},
		"none":   {dlq.AuditFilter{Actor: "eve"}, 0},
	} {
		got := recorded(t, s, c.filter, dlq.Page{})
		require.Len(t, got, c.want, name)
	}
	var paged []string
	page := dlq.Page{Limit: 2}
	for {
		got, next, err := s.Audit(t.Context(), dlq.AuditFilter{EntryID: id}, page)
		require.NoError(t, err)
		for _, r := range got {
			paged = append(paged, string(r.Action))
		}
		if next == "" {
			break
		}
		page.After = next
	}
	require.Equal(t, []string{"die", "redrive", "restore", "discard"}, paged)
}

// Old RESOLVED entries are purged; waiting and discarded ones are kept.
func testPurge(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	list := putMany(t, s, 0, 6)
	old, young := noon.Add(time.Hour), noon.Add(100*24*time.Hour)
	mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: list[0:1], At: old})
	mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: list[1:2], At: old})
	mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: list[2:3], At: young})
	mustChange(t, s, driver.Change{Action: driver.ActionDiscard, IDs: list[3:4], At: old})
	claim(t, s, list[4], old)

	purge := dlq.Purge{ClosedBefore: young, Limit: 1, Actor: "cron", Note: "90 days", At: young}
	for _, want := range []int{1, 1, 0} {
		require.Equal(t, want, must(s.Purge(t.Context(), purge))(t))
	}
	require.Equal(t, list[2:], ids(all(t, s, dlq.Filter{})))
	_, err := s.Get(t.Context(), list[0])
	require.ErrorIs(t, err, dlq.ErrNotFound)
	_, err = s.Body(t.Context(), list[0], 0)
	require.ErrorIs(t, err, dlq.ErrNotFound)

	purge.Statuses, purge.Limit = []dlq.Status{dlq.Resolved, dlq.Discarded}, 0
	purge.ClosedBefore = young.Add(time.Hour)
	require.Equal(t, 2, must(s.Purge(t.Context(), purge))(t))
	require.Equal(t, list[4:], ids(all(t, s, dlq.Filter{})))

	records := recorded(t, s, dlq.AuditFilter{Action: driver.ActionPurge}, dlq.Page{Order: driver.OldestFirst})
	require.Len(t, records, 4)
	for i, r := range records[:2] {
		require.Equal(t, []any{"cron", "90 days", dlq.Resolved}, []any{r.Actor, r.Note, r.From})
		require.Equal(t, map[string]string{"event_id": fmt.Sprintf("message-%d", i)}, r.Detail)
	}
	// The same delivery, dead-lettered again, is a new entry: nothing that is left of the purged one prevents that.
	require.Equal(t, driver.Stored, put(t, s, letter(0))[0].Result)
}

// Purged entries are restored from the archive unchanged, unless their delivery has died again since.
func testUnarchive(t *testing.T, db Database) {
	t.Helper()
	store := db.open(t)
	s, ok := driver.As[driver.ArchiveStore](store)
	if !ok {
		t.Skip("this store has no archive")
	}
	list := putMany(t, s, 0, 4, func(d *envelope.DeadLetter) {
		d.Message.Payload = append([]byte("\xff\x00"), bytes.Repeat([]byte("long "), 1<<19)...)
		d.Message.Metadata[envelope.KeyCorrelationID] = "not a UUID"
	})
	closed := noon.Add(time.Hour)
	for _, id := range list[:3] {
		mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: []int64{id}, At: closed})
	}
	want := get(t, s, list[0])
	before := must(s.Stats(t.Context(), dlq.StatsQuery{Since: noon, Now: closed}))(t)
	n := must(s.Purge(t.Context(), dlq.Purge{ClosedBefore: closed.Add(time.Minute), Actor: "cron", At: closed}))(t)
	require.Equal(t, 3, n)
	again := put(t, s, letter(1, func(d *envelope.DeadLetter) {
		d.Message.Payload = append([]byte("\xff\x00"), bytes.Repeat([]byte("long "), 1<<19)...)
	}))[0]
	require.Equal(t, driver.Stored, again.Result)

	_, err := s.Unarchive(t.Context(), dlq.By{}, closed, list...)
	require.ErrorIs(t, err, dlq.ErrInvalid)
	back := must(s.Unarchive(t.Context(), dlq.By{Actor: "ana", Note: "requested by the customer"}, closed, list[0],
		list[0], list[1], list[2], list[3], 4711))(t)
	require.Equal(t, []int64{list[0], list[2]}, back, "the second has died again, the fourth was never purged")
	require.Equal(t, want, get(t, s, list[0]))
	back = must(s.Unarchive(t.Context(), dlq.By{Actor: "ana"}, closed, list...))(t)
	require.Empty(t, back)
	records := recorded(t, s, dlq.AuditFilter{Action: driver.ActionUnarchive}, dlq.Page{})
	require.Len(t, records, 2)
	require.Equal(t, []any{"ana", "requested by the customer", dlq.Resolved},
		[]any{records[0].Actor, records[0].Note, records[0].To})
	after := must(s.Stats(t.Context(), dlq.StatsQuery{Since: noon, Now: closed}))(t)
	require.Equal(t, before.Counts.Resolved-1, after.Counts.Resolved)
	require.Equal(t, before.Counts.Pending+1, after.Counts.Pending)
	mustChange(t, s, driver.Change{Action: driver.ActionRestore, IDs: list[:1], At: closed.Add(time.Hour)})

	mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: list[:1], At: closed.Add(time.Hour)})
	n = must(s.Purge(t.Context(), dlq.Purge{
		ClosedBefore: closed.Add(2 * time.Hour), Actor: "cron", At: closed, SkipArchive: true,
	}))(t)
	require.Equal(t, 2, n)
	back = must(s.Unarchive(t.Context(), dlq.By{Actor: "ana"}, closed, list...))(t)
	require.Empty(t, back, "restored entries are no longer in the archive")
}

// The original message survives editing, purging and restoring its entry, and the retention period of a restored entry
// starts over.
func testUnarchiveRevisions(t *testing.T, db Database) {
	t.Helper()
	store := db.open(t)
	s, ok := driver.As[driver.ArchiveStore](store)
	if !ok {
		t.Skip("this store has no archive")
	}
	list := putMany(t, s, 0, 2)
	first := must(s.Body(t.Context(), list[0], 0))(t)
	for _, payload := range []string{"second", "third"} {
		e := get(t, s, list[0])
		must(s.Revise(t.Context(), driver.Revision{
			EntryID: list[0], Version: e.Version, Body: &dlq.Body{UUID: "u", Payload: []byte(payload)}, Actor: "ana", At: noon,
		}))(t)
	}
	closed := noon.Add(time.Hour)
	mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: list, At: closed})
	purge := dlq.Purge{ClosedBefore: closed.Add(time.Minute), Actor: "cron", At: closed}
	for round := range 2 {
		require.Equal(t, 2-round, must(s.Purge(t.Context(), purge))(t))
		back := closed.Add(time.Duration(round+1) * time.Hour)
		require.Equal(t, list[:1], must(s.Unarchive(t.Context(), dlq.By{Actor: "ana"}, back, list[0]))(t))
		require.Equal(t, first, must(s.Body(t.Context(), list[0], 0))(t))
		for i, payload := range []string{"second", "third"} {
			require.Equal(t, payload, string(must(s.Body(t.Context(), list[0], i+1))(t).Payload))
		}
		n := must(s.Purge(t.Context(), purge))(t)
		require.Zero(t, n, "the next purge keeps it")
		purge.ClosedBefore = back.Add(time.Minute)
	}
}

// Retention keeps each status for its own period, and open entries forever.
func testRetention(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	m := must(dlq.NewManager(dlq.ManagerConfig{Store: s}))(t)
	list := putMany(t, s, 0, 5)
	now := time.Now()
	for i, age := range []time.Duration{100, 10} {
		mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: list[i : i+1], At: now.Add(-age * 24 * time.Hour)})
		mustChange(t, s, driver.Change{
			Action: driver.ActionDiscard, IDs: list[i+2 : i+3], At: now.Add(-age * 24 * time.Hour),
		})
	}
	_, err := m.Retain(t.Context(), dlq.Retention{Resolved: -1})
	require.ErrorIs(t, err, dlq.ErrInvalid)
	require.Zero(t, must(m.Retain(t.Context(), dlq.Retention{}))(t))
	n := must(m.Retain(t.Context(), dlq.Retention{Resolved: 90 * 24 * time.Hour}))(t)
	require.Equal(t, 1, n)
	require.Equal(t, list[1:], ids(all(t, s, dlq.Filter{})))
	n = must(m.Retain(t.Context(), dlq.Retention{
		Resolved: 24 * time.Hour, Discarded: 90 * 24 * time.Hour, SkipArchive: true,
	}))(t)
	require.Equal(t, 2, n)
	require.Equal(t, []int64{list[3], list[4]}, ids(all(t, s, dlq.Filter{})))
}

func testPurgeRefuses(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	good := dlq.Purge{ClosedBefore: noon, Actor: "cron", At: noon}
	for name, edit := range map[string]func(*dlq.Purge){
		"pending":  func(p *dlq.Purge) { p.Statuses = []dlq.Status{dlq.Pending} },
		"retrying": func(p *dlq.Purge) { p.Statuses = []dlq.Status{dlq.Resolved, dlq.Retrying} },
		"no age":   func(p *dlq.Purge) { p.ClosedBefore = time.Time{} },
		"no actor": func(p *dlq.Purge) { p.Actor = "" },
		"no time":  func(p *dlq.Purge) { p.At = time.Time{} },
		"limit":    func(p *dlq.Purge) { p.Limit = -1 },
	} {
		p := good
		edit(&p)
		_, err := s.Purge(t.Context(), p)
		require.ErrorIs(t, err, dlq.ErrInvalid, name)
	}
}

// The message of a redrive may still be in flight when its entry is purged, so the id must not be reused for another
// entry.
func testIDsNotReused(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: []int64{id}})
	n := must(s.Purge(t.Context(), dlq.Purge{ClosedBefore: noon.Add(24 * time.Hour), Actor: "cron", At: noon}))(t)
	require.Equal(t, 1, n)
	require.Greater(t, put(t, s, letter(2))[0].ID, id)
}
