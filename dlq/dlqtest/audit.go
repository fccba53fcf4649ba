package dlqtest

import (
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// Every transition is recorded, with the actor, time, action, note, and the statuses before and after.
func (w *world) TestAudit() {
	id := w.put(letter(1))[0].ID
	other := w.put(letter(2))[0].ID
	at := noon.Add(time.Hour)
	w.mustChange(driver.Change{Action: driver.ActionDiscard, IDs: []int64{id}, Actor: "bob", Note: "a test order", At: at})
	w.mustChange(driver.Change{
		Action: driver.ActionRestore, IDs: []int64{id}, Actor: "ana", Note: "it was not", At: at.Add(time.Minute),
	})
	w.act(driver.ActionRedrive, at.Add(2*time.Minute), id)
	w.put(redriven(w.get(id), at.Add(3*time.Minute), dies("closed")))
	fails(w.change(driver.Change{
		Action: driver.ActionRestore, IDs: []int64{id}, Actor: "eve", At: at.Add(4 * time.Minute),
	}))(w, dlq.ErrConflict, "a refused action is not recorded")
	w.mustChange(driver.Change{Action: driver.ActionDiscard, IDs: []int64{other}, Actor: "bob", At: at})

	records, next, err := w.Audit(w.Context(), dlq.AuditFilter{EntryID: id}, dlq.Page{Order: driver.OldestFirst})
	require.NoError(w, err)
	require.Empty(w, next)
	for i := range records {
		require.NotZero(w, records[i].ID)
		records[i].ID = 0
	}
	require.Equal(w, []driver.AuditRecord{
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

	w.recorded(5, dlq.AuditFilter{}, dlq.Page{})
	w.recorded(2, dlq.AuditFilter{Actor: "bob"}, dlq.Page{})
	w.recorded(1, dlq.AuditFilter{Action: driver.ActionRestore}, dlq.Page{})
	w.recorded(2, dlq.AuditFilter{From: at, To: at.Add(time.Minute)}, dlq.Page{})
	w.recorded(0, dlq.AuditFilter{Actor: "eve"}, dlq.Page{})
	var paged []string
	for _, r := range readAll(w, dlq.Page{Limit: 2}, func(p dlq.Page) ([]driver.AuditRecord, string, error) {
		return w.Audit(w.Context(), dlq.AuditFilter{EntryID: id}, p)
	}) {
		paged = append(paged, string(r.Action))
	}
	require.Equal(w, []string{"die", "redrive", "restore", "discard"}, paged)
}

// Old RESOLVED entries are purged; waiting and discarded ones are kept.
func (w *world) TestPurge() {
	list := w.putMany(0, 6)
	old, young := noon.Add(time.Hour), noon.Add(100*24*time.Hour)
	w.act(driver.ActionResolve, old, list[:2]...)
	w.act(driver.ActionResolve, young, list[2])
	w.act(driver.ActionDiscard, old, list[3])
	w.claim(list[4], old)

	purge := dlq.Purge{ClosedBefore: young, Limit: 1, Actor: "cron", Note: "90 days", At: young}
	for _, want := range []int{1, 1, 0} {
		require.Equal(w, want, must(w.Purge(w.Context(), purge))(w))
	}
	require.Equal(w, list[2:], ids(w.all(dlq.Filter{})))
	fails(w.Get(w.Context(), list[0]))(w, dlq.ErrNotFound)
	fails(w.Body(w.Context(), list[0], 0))(w, dlq.ErrNotFound)

	purge.Statuses, purge.Limit = []dlq.Status{dlq.Resolved, dlq.Discarded}, 0
	purge.ClosedBefore = young.Add(time.Hour)
	require.Equal(w, 2, must(w.Purge(w.Context(), purge))(w))
	require.Equal(w, list[4:], ids(w.all(dlq.Filter{})))

	records := w.recorded(4, dlq.AuditFilter{Action: driver.ActionPurge}, dlq.Page{Order: driver.OldestFirst})
	for i, r := range records[:2] {
		require.Equal(w, []any{"cron", "90 days", dlq.Resolved}, []any{r.Actor, r.Note, r.From})
		require.Equal(w, map[string]string{"event_id": fmt.Sprintf("message-%d", i)}, r.Detail)
	}
	// The same delivery, dead-lettered again, is a new entry: nothing that is left of the purged one prevents that.
	require.Equal(w, driver.Stored, w.put(letter(0))[0].Result)
}

// Purged entries are restored from the archive unchanged, unless their delivery has died again since.
func (w *world) TestUnarchive() {
	s := optional[driver.ArchiveStore](w)
	long := payload("\xff\x00" + strings.Repeat("long ", 1<<19))
	list := w.putMany(0, 4, long, header(envelope.KeyCorrelationID, "not a UUID"))
	closed := noon.Add(time.Hour)
	w.act(driver.ActionResolve, closed, list[:3]...)
	want := w.get(list[0])
	before := must(w.Stats(w.Context(), dlq.StatsQuery{Since: noon, Now: closed}))(w)
	require.Equal(w, 3, w.purge(closed.Add(time.Minute), closed))
	require.Equal(w, driver.Stored, w.put(letter(1, long))[0].Result)

	fails(s.Unarchive(w.Context(), dlq.By{}, closed, list...))(w, dlq.ErrInvalid)
	back := must(s.Unarchive(w.Context(), dlq.By{Actor: "ana", Note: "requested by the customer"}, closed, list[0],
		list[0], list[1], list[2], list[3], 4711))(w)
	require.Equal(w, []int64{list[0], list[2]}, back, "the second has died again, the fourth was never purged")
	require.Equal(w, want, w.get(list[0]))
	require.Empty(w, must(s.Unarchive(w.Context(), dlq.By{Actor: "ana"}, closed, list...))(w))
	records := w.recorded(2, dlq.AuditFilter{Action: driver.ActionUnarchive}, dlq.Page{})
	require.Equal(w, []any{"ana", "requested by the customer", dlq.Resolved},
		[]any{records[0].Actor, records[0].Note, records[0].To})
	after := must(w.Stats(w.Context(), dlq.StatsQuery{Since: noon, Now: closed}))(w)
	require.Equal(w, before.Counts.Resolved-1, after.Counts.Resolved)
	require.Equal(w, before.Counts.Pending+1, after.Counts.Pending)
	w.act(driver.ActionRestore, closed.Add(time.Hour), list[0])

	w.act(driver.ActionResolve, closed.Add(time.Hour), list[0])
	require.Equal(w, 2, must(w.Purge(w.Context(), dlq.Purge{
		ClosedBefore: closed.Add(2 * time.Hour), Actor: "cron", At: closed, SkipArchive: true,
	}))(w))
	require.Empty(w, must(s.Unarchive(w.Context(), dlq.By{Actor: "ana"}, closed, list...))(w), "no longer in the archive")
}

// A delivery may be in the archive twice: purged, dead again, and purged again. One of them comes back.
func (w *world) TestUnarchiveSameDelivery() {
	s := optional[driver.ArchiveStore](w)
	var list []int64
	for round := range 3 {
		at := noon.Add(time.Duration(round) * time.Hour)
		list = append(list, w.put(letter(1))[0].ID, w.put(letter(2 + round))[0].ID)
		w.act(driver.ActionResolve, at, list[2*round:]...)
		w.purge(at.Add(time.Minute), at)
	}
	back := must(s.Unarchive(w.Context(), dlq.By{Actor: "ana"}, noon.Add(9*time.Hour), list...))(w)
	require.Equal(w, []int64{list[0], list[1], list[3], list[5]}, back)
	require.Empty(w, must(s.Unarchive(w.Context(), dlq.By{Actor: "ana"}, noon.Add(9*time.Hour), list...))(w))
}

// The original message survives editing, purging and restoring its entry, and the retention period of a restored entry
// starts over.
func (w *world) TestUnarchiveRevisions() {
	s := optional[driver.ArchiveStore](w)
	list := w.putMany(0, 2)
	first := must(w.Body(w.Context(), list[0], 0))(w)
	for _, payload := range []string{"second", "third"} {
		w.edit(list[0], payload, noon)
	}
	closed := noon.Add(time.Hour)
	w.act(driver.ActionResolve, closed, list...)
	purge := dlq.Purge{ClosedBefore: closed.Add(time.Minute), Actor: "cron", At: closed}
	for round := range 2 {
		require.Equal(w, 2-round, must(w.Purge(w.Context(), purge))(w))
		back := closed.Add(time.Duration(round+1) * time.Hour)
		require.Equal(w, list[:1], must(s.Unarchive(w.Context(), dlq.By{Actor: "ana"}, back, list[0]))(w))
		require.Equal(w, first, must(w.Body(w.Context(), list[0], 0))(w))
		for i, payload := range []string{"second", "third"} {
			require.Equal(w, payload, string(must(w.Body(w.Context(), list[0], i+1))(w).Payload))
		}
		require.Zero(w, must(w.Purge(w.Context(), purge))(w), "the next purge keeps it")
		purge.ClosedBefore = back.Add(time.Minute)
	}
}

// Retention keeps each status for its own period, and open entries forever.
func (w *world) TestRetention() {
	m := must(dlq.NewManager(dlq.ManagerConfig{Store: w.Store}))(w)
	list := w.putMany(0, 5)
	now := time.Now()
	for i, days := range []int{100, 10} {
		closed := now.AddDate(0, 0, -days)
		w.act(driver.ActionResolve, closed, list[i])
		w.act(driver.ActionDiscard, closed, list[i+2])
	}
	fails(m.Retain(w.Context(), dlq.Retention{Resolved: -1}))(w, dlq.ErrInvalid)
	require.Zero(w, must(m.Retain(w.Context(), dlq.Retention{}))(w))
	require.Equal(w, 1, must(m.Retain(w.Context(), dlq.Retention{Resolved: 90 * 24 * time.Hour}))(w))
	require.Equal(w, list[1:], ids(w.all(dlq.Filter{})))
	require.Equal(w, 2, must(m.Retain(w.Context(), dlq.Retention{
		Resolved: 24 * time.Hour, Discarded: 90 * 24 * time.Hour, SkipArchive: true,
	}))(w))
	require.Equal(w, []int64{list[3], list[4]}, ids(w.all(dlq.Filter{})))
}

func (w *world) TestPurgeRefusesInvalidCalls() {
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
		fails(w.Purge(w.Context(), p))(w, dlq.ErrInvalid, name)
	}
}

// The message of a redrive may still be in flight when its entry is purged, so the id must not be reused for another
// entry.
func (w *world) TestIDsAreNotReused() {
	id := w.put(letter(1))[0].ID
	w.mustChange(driver.Change{Action: driver.ActionResolve, IDs: []int64{id}})
	require.Equal(w, 1, w.purge(noon.Add(24*time.Hour), noon))
	require.Greater(w, w.put(letter(2))[0].ID, id)
}
