package dlqtest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
)

// Outcomes are read from the entries, however and whenever they were recorded: success, death, none in time, entry
// purged, entry changed by others.
func testRunSettle(w *world) {
	list := w.putMany(0, 8)
	r := w.newRun(redrive.Spec{ID: "run-1"}, 100)
	at := noon.Add(time.Hour)
	claimed := w.claimAll(r.ID, at, 100)
	step := stepOf(r.ID, at)
	step.Published = list[:6]
	w.mustStep(step)
	require.Equal(w, redrive.Counts{Claimed: 2, Out: 6}, w.settled(r.ID, at.Add(time.Second)), "nothing is known yet")

	// A success from a consumer whose clock is behind, a death, and a death followed by a manual redrive.
	w.mustChange(driver.Change{
		Action: driver.ActionSucceed, IDs: list[0:1], Actor: "redrive", At: at.Add(-time.Minute),
	})
	for _, i := range []int{1, 2} {
		e := w.get(list[i])
		w.put(redriven(e, at.Add(time.Minute), func(d *envelope.DeadLetter) { d.Err.Message = "closed" }))
	}
	w.mustChange(driver.Change{Action: driver.ActionRedrive, IDs: list[2:3], Actor: "bob", At: at.Add(2 * time.Minute)})
	// The process published this one, and died before it could record that.
	w.mustChange(driver.Change{Action: driver.ActionSucceed, IDs: list[6:7], Actor: "redrive", At: at.Add(time.Minute)})
	// Succeeded and purged before the next look.
	w.mustChange(driver.Change{Action: driver.ActionSucceed, IDs: list[3:4], Actor: "redrive", At: at.Add(time.Second)})
	must(w.Purge(w.Context(), dlq.Purge{ClosedBefore: at.Add(2 * time.Second), Actor: "cron", At: at}))(w)

	now := at.Add(30 * time.Second)
	got := w.settled(r.ID, now)
	require.Equal(w, redrive.Counts{Claimed: 1, Out: 2, Succeeded: 1, Failed: 2, Lost: 2}, got)
	failed := w.itemsOf(r.ID, redrive.ItemFailed)
	require.Equal(w, []string{"closed", "closed"}, []string{failed[0].Detail, failed[1].Detail})
	require.Equal(w, now, failed[0].SettledAt)

	// The claim that was never published is waiting again, with the entry as it is now; its next redrive has another
	// number.
	got = w.settled(r.ID, at.Add(time.Minute))
	require.Equal(w, redrive.Counts{Waiting: 1, Out: 2, Succeeded: 1, Failed: 2, Lost: 2}, got)
	again := w.claimAll(r.ID, at.Add(time.Minute), 100)
	require.Len(w, again, 1)
	require.Equal(w, []any{list[7], 2, claimed[7].Version + 1},
		[]any{again[0].ID, again[0].RedriveCount, again[0].Version})
	// No outcome within the timeout.
	got = w.settled(r.ID, at.Add(time.Hour))
	require.Equal(w, int64(4), got.Lost)
	got = w.settled(r.ID, at.Add(3*time.Hour))
	require.Equal(w, int64(1), got.Waiting, "the claim was never published")
	_, n, err := w.SettleRun(w.Context(), r.ID, holder, at.Add(3*time.Hour), 100)
	require.NoError(w, err)
	require.Zero(w, n)
}

// An outcome may arrive after its claim has expired and before the next one: from a slow consumer, for a message that
// was sent by a process which died before it could record that. It is the outcome of that run's redrive, and the
// message is not sent again.
func lateOutcome(w *world, knowing bool) {
	list := w.putMany(0, 4)
	r := w.newRun(redrive.Spec{ID: "run-1"}, 100)
	at := noon.Add(time.Hour)
	require.Len(w, w.claimAll(r.ID, at, 100), 4)
	at = at.Add(time.Minute)
	require.Equal(w, redrive.Counts{Waiting: 4}, w.settled(r.ID, at), "the claims have expired")

	step := stepOf(r.ID, at)
	for _, id := range list[:3] {
		e := w.get(id)
		step.Claims = append(step.Claims, redrive.Claim{EntryID: id, Version: e.Version})
	}
	w.mustChange(driver.Change{Action: driver.ActionSucceed, IDs: list[0:1], Actor: "redrive", At: at})
	w.put(redriven(w.get(list[1]), at, func(d *envelope.DeadLetter) { d.Err.Message = "closed" }))
	for _, action := range []driver.Action{driver.ActionRelease, driver.ActionResolve} { // by an operator in the meantime
		w.mustChange(driver.Change{Action: action, IDs: list[2:3], Actor: "bob", At: at})
	}
	if knowing {
		step.Known = map[int64]*dlq.Entry{}
		for _, id := range list[:3] {
			step.Known[id] = w.get(id)
		}
	}
	stepped := w.mustStep(step)
	require.Empty(w, stepped.Claimed)
	require.Equal(w, redrive.Counts{Waiting: 1, Succeeded: 1, Failed: 1, Skipped: 1}, stepped.Run.Counts)
	require.Equal(w, "closed", w.itemsOf(r.ID, redrive.ItemFailed)[0].Detail)
	require.Contains(w, w.itemsOf(r.ID, redrive.ItemSkipped)[0].Detail, "by bob")

	// An entry that the broker refused was not sent: what happens to it later is not an outcome of the run.
	last := w.claimAll(r.ID, at, 1)
	require.Len(w, last, 1)
	step = stepOf(r.ID, at)
	step.Released = []redrive.Refusal{{EntryID: list[3], Detail: "broker is down"}}
	w.mustStep(step)
	e := w.get(list[3])
	w.mustChange(driver.Change{Action: driver.ActionRedrive, IDs: list[3:4], Actor: "bob", At: at})
	w.mustChange(driver.Change{Action: driver.ActionSucceed, IDs: list[3:4], Actor: "redrive", At: at})
	step = stepOf(r.ID, at)
	step.Claims = []redrive.Claim{{EntryID: list[3], Version: e.Version}}
	require.Equal(w, redrive.Counts{Succeeded: 1, Failed: 1, Skipped: 2}, w.mustStep(step).Run.Counts)
}
