package dlqtest

import (
	"bytes"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
)

// A step's known entries are used where they match the stored ones, and ignored where they do not: the result is the
// same as without them.
func testRunKnown(w *world) {
	list := w.putMany(0, 70)
	r := w.newRun(redrive.Spec{ID: "run-1"}, 100)
	at := noon.Add(time.Hour)
	knowing := func(count int, meanwhile func()) redrive.Stepped {
		items := must(w.NextItems(w.Context(), r.ID, 0, count, 1<<30))(w)
		step := stepOf(r.ID, at)
		step.Known = map[int64]*dlq.Entry{}
		for _, item := range items {
			step.Known[item.EntryID] = item.Entry
			step.Claims = append(step.Claims, redrive.Claim{EntryID: item.EntryID, Version: item.Version})
		}
		meanwhile()
		return w.mustStep(step)
	}
	first := knowing(20, func() {})
	require.Len(w, first.Claimed, 20)
	for i := range first.Claimed {
		stored := w.get(first.Claimed[i].ID)
		stored.Body = first.Claimed[i].Body
		require.Equal(w, stored, &first.Claimed[i])
	}
	second := knowing(20, func() {
		w.mustChange(driver.Change{Action: driver.ActionResolve, IDs: list[25:26], Actor: "bob"})
		w.put(letter(30)) // already known: only a count changes
	})
	require.Len(w, second.Claimed, 19, "one of the known entries has changed since")
	skipped := w.itemsOf(r.ID, redrive.ItemSkipped)
	require.Len(w, skipped, 1)
	require.Equal(w, list[25], skipped[0].EntryID)
	require.Contains(w, skipped[0].Detail, "by bob")
	require.Equal(w, redrive.Counts{Waiting: 30, Claimed: 39, Skipped: 1}, second.Run.Counts)

	// The result of the second step was lost, and a caller that only knows the state before it repeats it.
	again := stepOf(r.ID, at.Add(time.Second))
	again.Known = map[int64]*dlq.Entry{}
	for _, id := range list[20:25] {
		read := w.get(list[60]) // PENDING, version 1
		read.ID = id
		again.Known[id] = read
		again.Claims = append(again.Claims, redrive.Claim{EntryID: id, Version: 1})
	}
	require.Empty(w, w.mustStep(again).Claimed)

	closing := stepOf(r.ID, at.Add(time.Minute))
	closing.ClosePublished, closing.Known = true, map[int64]*dlq.Entry{}
	for i := range first.Claimed {
		closing.Known[first.Claimed[i].ID] = &first.Claimed[i]
		closing.Published = append(closing.Published, first.Claimed[i].ID)
	}
	w.mustChange(driver.Change{Action: driver.ActionSucceed, IDs: list[3:4], Actor: "redrive", At: at.Add(time.Second)})
	require.Equal(w, redrive.Counts{Waiting: 30, Claimed: 19, Succeeded: 20, Skipped: 1},
		w.mustStep(closing).Run.Counts)
	require.Equal(w, "redrive", w.get(list[3]).ResolvedBy, "its consumer reported first")
	require.Equal(w, "ana", w.get(list[4]).ResolvedBy)

	for action, want := range map[driver.Action]int{driver.ActionRedrive: 39, driver.ActionSucceed: 20} {
		records := w.recorded(dlq.AuditFilter{Run: r.ID, Action: action}, dlq.Page{Limit: driver.MaxPage})
		require.Len(w, records, want, "a repeated step records nothing twice: %s", action)
	}
	w.requireCounts(driver.Counts{Pending: 30, Retrying: 19, Resolved: 21})
}

// A run gets the complete payload even if the database stores it in several rows, and so does an entry whose payload
// the run has edited.
func testRunLargePayload(w *world) {
	payload := bytes.Repeat([]byte("0123456789"), 250_000)
	id := w.put(letter(0, func(d *envelope.DeadLetter) { d.Message.Payload = payload }))[0].ID
	r := w.newRun(redrive.Spec{ID: "run-1"}, 100)
	items := must(w.NextItems(w.Context(), r.ID, 0, 10, 1<<30))(w)
	require.True(w, bytes.Equal(payload, items[0].Entry.Body.Payload), "%d of %d bytes", len(items[0].Entry.Body.Payload),
		len(payload))
	step := stepOf(r.ID, noon)
	edited := append([]byte("edited"), payload...)
	step.Claims = []redrive.Claim{{EntryID: id, Version: items[0].Version, Body: &dlq.Body{Payload: edited}}}
	require.Len(w, w.mustStep(step).Claimed, 1)
	require.True(w, bytes.Equal(edited, w.get(id).Body.Payload))
}
