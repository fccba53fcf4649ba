package dlqtest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// A run is read back as it was stored, listed, and changed by compare-and-set; its steps do not count as changes.
func testRunResource(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	putMany(t, s, 0, 3)
	redrives := 2
	spec := redrive.Spec{
		ID: "run-0", Limit: 7, Rate: 12.5, Canary: []int{1, 10}, JQ: `.a = "é\u0000"`, OutcomeTimeout: wire.Seconds(time.Minute),
		Filter: dlq.Filter{Topic: "orders", From: noon, Redrives: &redrives, IDs: []int64{1, 2}},
	}
	spec = must(spec.Resolve())(t)
	created := &redrive.Run{Run: wire.Run{
		ID: spec.ID, Spec: spec, State: redrive.Preparing, Version: 1, CreatedAt: noon, CreatedBy: "ana 'é'", Note: "why",
		ChangedAt: noon, ChangedBy: "ana", ApprovalAbove: -1,
	}}
	audit := driver.AuditRecord{At: noon, Actor: "ana", Action: redrive.ActionStart, Run: created.ID, Note: "why"}
	require.NoError(t, s.CreateRun(t.Context(), created, audit))
	requireTaken(t, s.CreateRun(t.Context(), created, audit), created)
	got := must(s.Run(t.Context(), created.ID))(t)
	want := *created
	want.FreezeTo = got.FreezeTo
	require.Positive(t, got.FreezeTo)
	require.Equal(t, &want, got)

	changed := *got
	changed.State, changed.Version, changed.Cause, changed.ChangedBy = redrive.Paused, 2, "lunch", "bob"
	changed.StartedAt, changed.Baseline = noon.Add(time.Second), redrive.Counts{Failed: 3}
	changed.Counts, changed.Holder, changed.FrozenTo = redrive.Counts{Out: 99}, "intruder", 99 // not writable
	audit.Action = redrive.ActionPause
	require.NoError(t, s.ChangeRun(t.Context(), &changed, audit))
	err := s.ChangeRun(t.Context(), &changed, audit)
	var conflict *redrive.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, []any{"bob", string(redrive.Paused), int64(2)}, []any{conflict.By, conflict.Status, conflict.Version})
	got = must(s.Run(t.Context(), created.ID))(t)
	changed.Counts, changed.Holder, changed.FrozenTo = redrive.Counts{}, "", 0
	require.Equal(t, &changed, got)
	missing := changed
	missing.ID = "none"
	require.ErrorIs(t, s.ChangeRun(t.Context(), &missing, audit), dlq.ErrNotFound)
	_, err = s.Run(t.Context(), "none")
	require.ErrorIs(t, err, dlq.ErrNotFound)
	_, err = s.RunItems(t.Context(), "none", redrive.ItemFilter{})
	require.ErrorIs(t, err, dlq.ErrNotFound)
	_, err = s.RunItems(t.Context(), created.ID, redrive.ItemFilter{State: "found again"})
	require.ErrorIs(t, err, dlq.ErrInvalid)
	records := recorded(t, s, dlq.AuditFilter{Run: created.ID}, dlq.Page{Order: driver.OldestFirst})
	require.Len(t, records, 2, "a refused change has no effect")

	for n := range 5 {
		newRun(t, s, redrive.Spec{ID: fmt.Sprintf("run-%d", n+1)}, 100)
	}
	var ids []string
	page := dlq.Page{Limit: 2, Order: driver.OldestFirst}
	for {
		runs, next, err := s.Runs(t.Context(), redrive.RunFilter{}, page)
		require.NoError(t, err)
		for _, r := range runs {
			ids = append(ids, r.ID)
		}
		if page.After = next; next == "" {
			break
		}
	}
	require.Equal(t, []string{"run-0", "run-1", "run-2", "run-3", "run-4", "run-5"}, ids)
	for want, f := range map[int]redrive.RunFilter{
		1: {States: []redrive.State{redrive.Paused, redrive.Stopped}}, 5: {Active: true}, 0: {CreatedBy: "eve"},
	} {
		runs, _, err := s.Runs(t.Context(), f, dlq.Page{})
		require.NoError(t, err)
		require.Len(t, runs, want)
	}
}

// A lease has one holder at a time among any number of processes, and ends when it expires or is released.
func testRunLease(t *testing.T, db Database) {
	t.Helper()
	stores := []Store{db.open(t), db.open(t)}
	s := stores[0]
	putMany(t, s, 0, 3)
	r := newRun(t, s, redrive.Spec{ID: "run-1"}, 10)
	must(s.LeaseRun(t.Context(), r.ID, holder, noon, 0))(t)
	var wg sync.WaitGroup
	won := make([]bool, 8)
	for i := range won {
		wg.Go(func() {
			_, err := stores[i%2].LeaseRun(t.Context(), r.ID, fmt.Sprintf("process %d", i), noon, time.Minute)
			if won[i] = err == nil; err != nil {
				assert.ErrorIs(t, err, redrive.ErrLeaseLost)
			}
		})
	}
	wg.Wait()
	winner := ""
	for i := range won {
		if won[i] {
			require.Empty(t, winner, "one wins")
			winner = fmt.Sprintf("process %d", i)
		}
	}
	got := must(s.Run(t.Context(), r.ID))(t)
	require.Equal(t, []any{winner, noon.Add(time.Minute)}, []any{got.Holder, got.LeaseUntil})
	step := stepOf(r.ID, noon.Add(time.Second))
	step.Holder = "another"
	_, err := s.StepRun(t.Context(), step)
	require.ErrorIs(t, err, redrive.ErrLeaseLost)
	_, _, err = s.SettleRun(t.Context(), r.ID, "another", noon, 10)
	require.ErrorIs(t, err, redrive.ErrLeaseLost)
	_, err = s.FreezeRun(t.Context(), r.ID, "another", noon, 10)
	require.ErrorIs(t, err, redrive.ErrLeaseLost)
	step.Holder, step.At = winner, noon.Add(time.Minute)
	_, err = s.StepRun(t.Context(), step)
	require.ErrorIs(t, err, redrive.ErrLeaseLost, "its lease has expired, even though no other process holds it")
	got = must(s.LeaseRun(t.Context(), r.ID, "another", noon.Add(time.Minute), time.Minute))(t)
	require.Equal(t, 1, got.Abandoned, "its holder has abandoned it")
	got = must(s.LeaseRun(t.Context(), r.ID, "a third", noon.Add(2*time.Minute), time.Minute))(t)
	require.Equal(t, 2, got.Abandoned, "and so has the next one")
	must(s.LeaseRun(t.Context(), r.ID, "a third", noon.Add(2*time.Minute), 0))(t)
	got = must(s.LeaseRun(t.Context(), r.ID, "a fourth", noon.Add(3*time.Minute), time.Minute))(t)
	require.Equal(t, 2, got.Abandoned, "releasing a lease does not count as abandoning the run")
	_, err = s.LeaseRun(t.Context(), "none", "another", noon, time.Minute)
	require.ErrorIs(t, err, dlq.ErrNotFound)
}

// requireTaken requires an error that names the run with that id.
func requireTaken(t *testing.T, err error, by *redrive.Run) {
	t.Helper()
	require.ErrorIs(t, err, dlq.ErrConflict)
	var conflict *redrive.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, by.ID, conflict.Run)
	require.Equal(t, []any{redrive.ActionStart, by.CreatedBy}, []any{conflict.Action, conflict.By})
	require.WithinDuration(t, by.CreatedAt, conflict.At, 0)
}

// If several processes start a run with the same id at once, one creates it, and the others learn who did.
func testRunSameID(t *testing.T, db Database) {
	t.Helper()
	stores := []Store{db.open(t), db.open(t)}
	spec := must(redrive.Spec{ID: "run"}.Resolve())(t)
	faults := make([]error, 8)
	var processes sync.WaitGroup
	for n := range faults {
		r := &redrive.Run{Run: wire.Run{
			ID: spec.ID, Spec: spec, State: redrive.Preparing, Version: 1, CreatedAt: noon, CreatedBy: fmt.Sprintf("ana %d", n),
			ChangedAt: noon, ChangedBy: "ana",
		}}
		audit := driver.AuditRecord{At: noon, Actor: r.CreatedBy, Action: redrive.ActionStart, Run: r.ID}
		processes.Go(func() { faults[n] = stores[n%2].CreateRun(t.Context(), r, audit) })
	}
	processes.Wait()
	there := must(stores[0].Run(t.Context(), spec.ID))(t)
	for n, err := range faults {
		if fmt.Sprintf("ana %d", n) == there.CreatedBy {
			require.NoError(t, err)
		} else {
			requireTaken(t, err, there)
		}
	}
	records, _, err := stores[0].Audit(t.Context(), dlq.AuditFilter{Run: spec.ID}, dlq.Page{})
	require.NoError(t, err)
	require.Len(t, records, 1)
}
