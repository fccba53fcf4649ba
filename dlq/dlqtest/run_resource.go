package dlqtest

import (
	"fmt"
	"strconv"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// A run is read back as it was stored, listed, and changed by compare-and-set; its steps do not count as changes.
func (w *world) TestRunResource() {
	w.putMany(0, 3)
	redrives := 2
	spec := redrive.Spec{
		ID: "run-0", Limit: 7, Rate: 12.5, Canary: []int{1, 10}, JQ: `.a = "é\u0000"`, OutcomeTimeout: wire.Seconds(time.Minute),
		Filter: dlq.Filter{Topic: "orders", From: noon, Redrives: &redrives, IDs: []int64{1, 2}},
	}
	spec = must(spec.Resolve())(w)
	created, audit := unfrozen(spec, "ana 'é'")
	created.Note, created.ApprovalAbove, audit.Note = "why", -1, "why"
	require.NoError(w, w.CreateRun(w.Context(), created, audit))
	requireTaken(w, w.CreateRun(w.Context(), created, audit), created)
	got := must(w.Run(w.Context(), created.ID))(w)
	want := *created
	want.FreezeTo = got.FreezeTo
	require.Positive(w, got.FreezeTo)
	require.Equal(w, &want, got)

	changed := *got
	changed.State, changed.Version, changed.Cause, changed.ChangedBy = redrive.Paused, 2, "lunch", "bob"
	changed.StartedAt, changed.Baseline = noon.Add(time.Second), redrive.Counts{Failed: 3}
	changed.Counts, changed.Holder, changed.FrozenTo = redrive.Counts{Out: 99}, "intruder", 99 // not writable
	audit.Action = redrive.ActionPause
	require.NoError(w, w.ChangeRun(w.Context(), &changed, audit))
	var conflict *redrive.ConflictError
	require.ErrorAs(w, w.ChangeRun(w.Context(), &changed, audit), &conflict)
	require.Equal(w, []any{"bob", string(redrive.Paused), int64(2)}, []any{conflict.By, conflict.Status, conflict.Version})
	got = must(w.Run(w.Context(), created.ID))(w)
	changed.Counts, changed.Holder, changed.FrozenTo = redrive.Counts{}, "", 0
	require.Equal(w, &changed, got)
	missing := changed
	missing.ID = "none"
	require.ErrorIs(w, w.ChangeRun(w.Context(), &missing, audit), dlq.ErrNotFound)
	fails(w.Run(w.Context(), "none"))(w, dlq.ErrNotFound)
	fails(w.RunItems(w.Context(), "none", redrive.ItemFilter{}))(w, dlq.ErrNotFound)
	fails(w.RunItems(w.Context(), created.ID, redrive.ItemFilter{State: "found again"}))(w, dlq.ErrInvalid)
	w.recorded(2, dlq.AuditFilter{Run: created.ID}, dlq.Page{}) // a refused change has no effect

	for n := range 5 {
		w.newRun(redrive.Spec{ID: fmt.Sprintf("run-%d", n+1)}, 100)
	}
	var ids []string
	page := dlq.Page{Limit: 2, Order: driver.OldestFirst}
	for _, r := range readAll(w, page, func(p dlq.Page) ([]redrive.Run, string, error) {
		return w.Runs(w.Context(), redrive.RunFilter{}, p)
	}) {
		ids = append(ids, r.ID)
	}
	require.Equal(w, []string{"run-0", "run-1", "run-2", "run-3", "run-4", "run-5"}, ids)
	for want, f := range map[int]redrive.RunFilter{
		1: {States: []redrive.State{redrive.Paused, redrive.Stopped}}, 5: {Active: true}, 0: {CreatedBy: "eve"},
	} {
		runs, _, err := w.Runs(w.Context(), f, dlq.Page{})
		require.NoError(w, err)
		require.Len(w, runs, want)
	}
}

// A lease has one holder at a time among any number of processes, and ends when it expires or is released.
func (w *world) TestRunLease() {
	stores := []Store{w.Store, w.open()}
	_, run := w.freeRun()
	won := make([]bool, 8)
	atOnce(len(won), func(i int) {
		_, err := stores[i%2].LeaseRun(w.Context(), run, fmt.Sprintf("process %d", i), noon, time.Minute)
		if won[i] = err == nil; err != nil {
			assert.ErrorIs(w, err, redrive.ErrLeaseLost)
		}
	})
	winner := ""
	for i := range won {
		if won[i] {
			require.Empty(w, winner, "one wins")
			winner = fmt.Sprintf("process %d", i)
		}
	}
	got := must(w.Run(w.Context(), run))(w)
	require.Equal(w, []any{winner, noon.Add(time.Minute)}, []any{got.Holder, got.LeaseUntil})
	step := stepOf(run, noon.Add(time.Second))
	step.Holder = "another"
	fails(w.StepRun(w.Context(), step))(w, redrive.ErrLeaseLost)
	_, _, err := w.SettleRun(w.Context(), run, "another", noon, 10)
	require.ErrorIs(w, err, redrive.ErrLeaseLost)
	fails(w.FreezeRun(w.Context(), run, "another", noon, 10))(w, redrive.ErrLeaseLost)
	step.Holder, step.At = winner, noon.Add(time.Minute)
	_, err = w.StepRun(w.Context(), step)
	require.ErrorIs(w, err, redrive.ErrLeaseLost, "its lease has expired, even though no other process holds it")
	got = must(w.LeaseRun(w.Context(), run, "another", noon.Add(time.Minute), time.Minute))(w)
	require.Equal(w, 1, got.Abandoned, "its holder has abandoned it")
	got = must(w.LeaseRun(w.Context(), run, "a third", noon.Add(2*time.Minute), time.Minute))(w)
	require.Equal(w, 2, got.Abandoned, "and so has the next one")
	must(w.LeaseRun(w.Context(), run, "a third", noon.Add(2*time.Minute), 0))(w)
	got = must(w.LeaseRun(w.Context(), run, "a fourth", noon.Add(3*time.Minute), time.Minute))(w)
	require.Equal(w, 2, got.Abandoned, "releasing a lease does not count as abandoning the run")
	fails(w.LeaseRun(w.Context(), "none", "another", noon, time.Minute))(w, dlq.ErrNotFound)
}

// requireTaken requires an error that names the run with that id.
func requireTaken(w *world, err error, by *redrive.Run) {
	w.Helper()
	require.ErrorIs(w, err, dlq.ErrConflict)
	var conflict *redrive.ConflictError
	require.ErrorAs(w, err, &conflict)
	require.Equal(w, by.ID, conflict.Run)
	require.Equal(w, []any{redrive.ActionStart, by.CreatedBy}, []any{conflict.Action, conflict.By})
	require.WithinDuration(w, by.CreatedAt, conflict.At, 0)
}

// If several processes start a run with the same id at once, one creates it, and the others learn who did.
func (w *world) TestRunSameID() {
	stores := []Store{w.Store, w.open()}
	spec := must(redrive.Spec{ID: "run"}.Resolve())(w)
	faults := make([]error, 8)
	atOnce(len(faults), func(n int) {
		r, audit := unfrozen(spec, fmt.Sprintf("ana %d", n))
		faults[n] = stores[n%2].CreateRun(w.Context(), r, audit)
	})
	there := must(w.Run(w.Context(), spec.ID))(w)
	for n, err := range faults {
		if fmt.Sprintf("ana %d", n) == there.CreatedBy {
			require.NoError(w, err)
		} else {
			requireTaken(w, err, there)
		}
	}
	w.recorded(1, dlq.AuditFilter{Run: spec.ID}, dlq.Page{})
}

// Outcomes are read from the entries, however and whenever they were recorded: success, death, none in time, entry
// purged, entry changed by others.
func (w *world) TestRunSettle() {
	list, r := w.runOf(8)
	at := noon.Add(time.Hour)
	claimed := w.claimAll(r.ID, at, 100)
	step := stepOf(r.ID, at)
	step.Published = list[:6]
	w.mustStep(step)
	require.Equal(w, redrive.Counts{Claimed: 2, Out: 6}, w.settled(r.ID, at.Add(time.Second)), "nothing is known yet")

	// A success from a consumer whose clock is behind, a death, and a death followed by a manual redrive.
	w.succeeds(list[0], at.Add(-time.Minute))
	for _, id := range list[1:3] {
		w.put(redriven(w.get(id), at.Add(time.Minute), dies("closed")))
	}
	w.mustChange(driver.Change{Action: driver.ActionRedrive, IDs: list[2:3], Actor: "bob", At: at.Add(2 * time.Minute)})
	// The process published this one, and died before it could record that.
	w.succeeds(list[6], at.Add(time.Minute))
	// Succeeded and purged before the next look.
	w.succeeds(list[3], at.Add(time.Second))
	w.purge(at.Add(2*time.Second), at)

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
	require.Equal(w, int64(4), w.settled(r.ID, at.Add(time.Hour)).Lost)
	require.Equal(w, int64(1), w.settled(r.ID, at.Add(3*time.Hour)).Waiting, "the claim was never published")
	_, n, err := w.SettleRun(w.Context(), r.ID, holder, at.Add(3*time.Hour), 100)
	require.NoError(w, err)
	require.Zero(w, n)
}

// An outcome may arrive after its claim has expired and before the next one: from a slow consumer, for a message that
// was sent by a process which died before it could record that. It is the outcome of that run's redrive, and the
// message is not sent again.
func (w *world) TestRunLateOutcome() { w.lateOutcome(false) }

// The same, where the step has the entries as they are now.
func (w *world) TestRunLateOutcomeKnown() { w.lateOutcome(true) }

func (w *world) lateOutcome(knowing bool) {
	list, r := w.runOf(4)
	at := noon.Add(time.Hour)
	require.Len(w, w.claimAll(r.ID, at, 100), 4)
	at = at.Add(time.Minute)
	require.Equal(w, redrive.Counts{Waiting: 4}, w.settled(r.ID, at), "the claims have expired")

	step := stepOf(r.ID, at)
	for _, id := range list[:3] {
		step.Claims = append(step.Claims, redrive.Claim{EntryID: id, Version: w.get(id).Version})
	}
	w.succeeds(list[0], at)
	w.put(redriven(w.get(list[1]), at, dies("closed")))
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
	require.Len(w, w.claimAll(r.ID, at, 1), 1)
	step = stepOf(r.ID, at)
	step.Released = []redrive.Refusal{{EntryID: list[3], Detail: "broker is down"}}
	w.mustStep(step)
	e := w.get(list[3])
	w.mustChange(driver.Change{Action: driver.ActionRedrive, IDs: list[3:4], Actor: "bob", At: at})
	w.succeeds(list[3], at)
	step = stepOf(r.ID, at)
	step.Claims = []redrive.Claim{{EntryID: list[3], Version: e.Version}}
	require.Equal(w, redrive.Counts{Succeeded: 1, Failed: 1, Skipped: 2}, w.mustStep(step).Run.Counts)
}

// An item whose claim has expired is skipped: its entry waits again, unless its outcome came since.
func (w *world) TestRunSkippedAfterClaim() {
	list, r := w.runOf(2)
	at := noon.Add(time.Hour)
	require.Len(w, w.claimAll(r.ID, at, 100), 2)
	at = at.Add(time.Minute)
	require.Equal(w, redrive.Counts{Waiting: 2}, w.settled(r.ID, at))
	w.mustChange(driver.Change{Action: driver.ActionSucceed, IDs: list[:1], Actor: "redrive", At: at})
	step := stepOf(r.ID, at)
	step.Skipped = []redrive.Refusal{{EntryID: list[0], Detail: "no JSON"}, {EntryID: list[1], Detail: "no JSON"}}
	for range 2 {
		require.Equal(w, redrive.Counts{Succeeded: 1, Skipped: 1}, w.mustStep(step).Run.Counts)
	}
	w.requireCounts(driver.Counts{Pending: 1, Resolved: 1})
	require.Equal(w, 1, w.get(list[1]).RedriveCount, "it may have been sent")
	require.Equal(w, "no JSON", w.itemsOf(r.ID, redrive.ItemSkipped)[0].Detail)
}

// A process died with claims, and the run is cancelled, before or after they expired: the entries wait again, since
// nothing else would ever send them, and a late outcome counts.
func (w *world) TestRunEndedWithClaims() {
	for i, cancelledFirst := range []bool{false, true} {
		list := w.putMany(3*i, 3*i+3)
		id := []string{"expired-first", "cancelled-first"}[i]
		r := w.newRun(redrive.Spec{ID: id, Filter: dlq.Filter{IDs: list}}, 100)
		at := noon.Add(time.Hour)
		require.Len(w, w.claimAll(id, at, 2), 2)
		expire := func() { w.settled(id, at.Add(2*time.Minute)) }
		if !cancelledFirst {
			expire()
		}
		r.State, r.Version, r.ChangedAt, r.ChangedBy = redrive.Cancelled, r.Version+1, at.Add(2*time.Minute), "bob"
		require.NoError(w, w.ChangeRun(w.Context(), r, driver.AuditRecord{
			At: r.ChangedAt, Actor: "bob", Action: redrive.ActionCancel, Run: id,
		}))
		if cancelledFirst {
			require.Equal(w, dlq.Retrying, w.get(list[0]).Status, "its outcome may still arrive")
			expire()
		}
		for _, entry := range list {
			require.Equal(w, dlq.Pending, w.get(entry).Status)
		}
		require.Equal(w, []int{1, 0}, []int{w.get(list[0]).RedriveCount, w.get(list[2]).RedriveCount})
		w.succeeds(list[0], at.Add(3*time.Minute), driver.Report{Number: 1})
		require.Equal(w, dlq.Resolved, w.get(list[0]).Status)
		require.Equal(w, redrive.Counts{Waiting: 3}, w.settled(id, at.Add(4*time.Minute)))
	}
}

// A run that kills every process which drives it reaches the limit of lost ones, also with progress between two losses.
func (w *world) TestRunAbandoned() {
	list, run := w.freeRun()
	for n, lost := range []int{0, 1, 1, 2, 3} {
		step := stepOf(run, noon.Add(time.Duration(n)*time.Minute))
		step.Holder, step.Lease = strconv.Itoa(n), time.Minute
		require.Equal(w, lost, must(w.LeaseRun(w.Context(), run, step.Holder, step.At, step.Lease))(w).Abandoned)
		if n == 1 {
			step.Skipped = []redrive.Refusal{{EntryID: list[0]}}
			w.mustStep(step)
		}
	}
}
