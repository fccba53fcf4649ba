package dlqtest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/envelope"
)

// newRun creates a run and freezes its set, in the name of a holder whose lease lasts.
func newRun(t *testing.T, s dlq.Store, spec dlq.RunSpec, chunk int) *dlq.Run {
	t.Helper()
	spec, err := spec.Resolve()
	require.NoError(t, err)
	r := &dlq.Run{
		ID: spec.ID, Spec: spec, State: dlq.RunPreparing, Version: 1, CreatedAt: noon, CreatedBy: "ana", ChangedAt: noon, ChangedBy: "ana",
	}
	require.NoError(t, s.CreateRun(t.Context(), r, dlq.AuditRecord{At: noon, Actor: "ana", Action: dlq.ActionRunStart, Run: r.ID}))
	r, err = s.LeaseRun(t.Context(), r.ID, holder, noon, 1000*time.Hour)
	require.NoError(t, err)
	for r.FrozenTo < r.FreezeTo {
		before := r.FrozenTo
		r, err = s.FreezeRun(t.Context(), r.ID, holder, noon, chunk)
		require.NoError(t, err)
		require.Greater(t, r.FrozenTo, before)
	}
	return r
}

const holder = "process 1"

// stepOf is a step of the holder at a time.
func stepOf(run string, at time.Time) dlq.RunStep {
	return dlq.RunStep{
		Run: run, Holder: holder, At: at, Lease: 1000 * time.Hour, Actor: "ana", OutcomeTimeout: time.Hour, ClaimTimeout: time.Minute,
	}
}

func mustStep(t *testing.T, s dlq.Store, step dlq.RunStep) dlq.RunStepped {
	t.Helper()
	stepped, err := s.StepRun(t.Context(), step)
	require.NoError(t, err)
	return stepped
}

// claimAll claims the next items of a run.
func claimAll(t *testing.T, s dlq.Store, run string, at time.Time, limit int) []dlq.Entry {
	t.Helper()
	items, err := s.NextItems(t.Context(), run, 0, limit, 1<<30)
	require.NoError(t, err)
	step := stepOf(run, at)
	for _, item := range items {
		step.Claims = append(step.Claims, dlq.RunClaim{EntryID: item.EntryID, Version: item.Version})
	}
	return mustStep(t, s, step).Claimed
}

func settled(t *testing.T, s dlq.Store, run string, at time.Time) dlq.RunCounts {
	t.Helper()
	r, _, err := s.SettleRun(t.Context(), run, holder, at, dlq.MaxPage)
	require.NoError(t, err)
	return r.Counts
}

func itemsOf(t *testing.T, s dlq.Store, run string, state dlq.ItemState) []dlq.RunItem {
	t.Helper()
	items, err := s.RunItems(t.Context(), run, dlq.ItemFilter{State: state, Limit: dlq.MaxPage})
	require.NoError(t, err)
	return items
}

// A run is found as it was stored, listed, and changed by compare-and-set; its steps do not count as changes.
func testRunResource(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	putMany(t, s, 0, 3)
	redrives := 2
	spec := dlq.RunSpec{
		ID: "run-0", Limit: 7, Rate: 12.5, Canary: []int{1, 10}, JQ: `.a = "é\u0000"`, OutcomeTimeout: time.Minute,
		Filter: dlq.Filter{Topic: "orders", From: noon, Redrives: &redrives, IDs: []int64{1, 2}},
	}
	spec, err := spec.Resolve()
	require.NoError(t, err)
	created := &dlq.Run{
		ID: spec.ID, Spec: spec, State: dlq.RunPreparing, Version: 1, CreatedAt: noon, CreatedBy: "ana 'é'", Note: "why", ChangedAt: noon,
		ChangedBy: "ana", ApprovalAbove: -1,
	}
	audit := dlq.AuditRecord{At: noon, Actor: "ana", Action: dlq.ActionRunStart, Run: created.ID, Note: "why"}
	require.NoError(t, s.CreateRun(t.Context(), created, audit))
	require.ErrorIs(t, s.CreateRun(t.Context(), created, audit), dlq.ErrConflict)
	got, err := s.Run(t.Context(), created.ID)
	require.NoError(t, err)
	want := *created
	want.FreezeTo = got.FreezeTo
	require.Positive(t, got.FreezeTo)
	require.Equal(t, &want, got)

	changed := *got
	changed.State, changed.Version, changed.Cause, changed.ChangedBy = dlq.RunPaused, 2, "lunch", "bob"
	changed.StartedAt, changed.Baseline = noon.Add(time.Second), dlq.RunCounts{Failed: 3}
	changed.Counts, changed.Holder, changed.FrozenTo = dlq.RunCounts{Out: 99}, "nobody", 99 // not the caller's to change
	audit.Action = dlq.ActionRunPause
	require.NoError(t, s.ChangeRun(t.Context(), &changed, audit))
	err = s.ChangeRun(t.Context(), &changed, audit)
	var conflict *dlq.RunConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, []any{"bob", dlq.RunPaused, int64(2)}, []any{conflict.By, conflict.State, conflict.Version})
	got, err = s.Run(t.Context(), created.ID)
	require.NoError(t, err)
	changed.Counts, changed.Holder, changed.FrozenTo = dlq.RunCounts{}, "", 0
	require.Equal(t, &changed, got)
	missing := changed
	missing.ID = "none"
	require.ErrorIs(t, s.ChangeRun(t.Context(), &missing, audit), dlq.ErrNotFound)
	_, err = s.Run(t.Context(), "none")
	require.ErrorIs(t, err, dlq.ErrNotFound)
	_, err = s.RunItems(t.Context(), "none", dlq.ItemFilter{})
	require.ErrorIs(t, err, dlq.ErrNotFound)
	_, err = s.RunItems(t.Context(), created.ID, dlq.ItemFilter{State: "lost and found"})
	require.ErrorIs(t, err, dlq.ErrInvalid)
	records, _, err := s.Audit(t.Context(), dlq.AuditFilter{Run: created.ID}, dlq.Page{Order: dlq.OldestFirst})
	require.NoError(t, err)
	require.Len(t, records, 2, "the change that was refused did not happen")

	for n := range 5 {
		newRun(t, s, dlq.RunSpec{ID: fmt.Sprintf("run-%d", n+1)}, 100)
	}
	var ids []string
	page := dlq.Page{Limit: 2, Order: dlq.OldestFirst}
	for {
		runs, next, err := s.Runs(t.Context(), dlq.RunFilter{}, page)
		require.NoError(t, err)
		for _, r := range runs {
			ids = append(ids, r.ID)
		}
		if page.After = next; next == "" {
			break
		}
	}
	require.Equal(t, []string{"run-0", "run-1", "run-2", "run-3", "run-4", "run-5"}, ids)
	for want, f := range map[int]dlq.RunFilter{
		1: {States: []dlq.RunState{dlq.RunPaused, dlq.RunStopped}}, 5: {Active: true}, 0: {CreatedBy: "eve"},
	} {
		runs, _, err := s.Runs(t.Context(), f, dlq.Page{})
		require.NoError(t, err)
		require.Len(t, runs, want)
	}
}

// A lease is one holder's at a time, whatever the number of processes, and ends with its time or when it is given back.
func testRunLease(t *testing.T, db Database) {
	t.Helper()
	stores := []dlq.Store{db.open(t), db.open(t)}
	s := stores[0]
	r := newRun(t, s, dlq.RunSpec{ID: "run-1"}, 10)
	_, err := s.LeaseRun(t.Context(), r.ID, holder, noon, 0)
	require.NoError(t, err)
	var wg sync.WaitGroup
	won := make([]bool, 8)
	for i := range won {
		wg.Go(func() {
			_, err := stores[i%2].LeaseRun(t.Context(), r.ID, fmt.Sprintf("process %d", i), noon, time.Minute)
			if won[i] = err == nil; err != nil {
				assert.ErrorIs(t, err, dlq.ErrLeaseLost)
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
	got, err := s.Run(t.Context(), r.ID)
	require.NoError(t, err)
	require.Equal(t, []any{winner, noon.Add(time.Minute)}, []any{got.Holder, got.LeaseUntil})
	step := stepOf(r.ID, noon.Add(time.Second))
	step.Holder = "another"
	_, err = s.StepRun(t.Context(), step)
	require.ErrorIs(t, err, dlq.ErrLeaseLost)
	_, _, err = s.SettleRun(t.Context(), r.ID, "another", noon, 10)
	require.ErrorIs(t, err, dlq.ErrLeaseLost)
	_, err = s.FreezeRun(t.Context(), r.ID, "another", noon, 10)
	require.ErrorIs(t, err, dlq.ErrLeaseLost)
	step.Holder, step.At = winner, noon.Add(time.Minute)
	_, err = s.StepRun(t.Context(), step)
	require.ErrorIs(t, err, dlq.ErrLeaseLost, "its time is over, though nobody has taken it")
	_, err = s.LeaseRun(t.Context(), r.ID, "another", noon.Add(time.Minute), time.Minute)
	require.NoError(t, err)
	_, err = s.LeaseRun(t.Context(), "none", "another", noon, time.Minute)
	require.ErrorIs(t, err, dlq.ErrNotFound)
}

// The set is what the filter picks when it is frozen, in chunks of any size; newer entries and newer deaths are not in it.
func testRunFreeze(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	list := putMany(t, s, 0, 20)
	putMany(t, s, 20, 25, func(d *envelope.DeadLetter) { d.Origin.Topic = "invoices" })
	mustChange(t, s, dlq.Change{Action: dlq.ActionDiscard, IDs: list[3:4]})
	mustChange(t, s, dlq.Change{Action: dlq.ActionPark, IDs: list[4:5]})
	orders := dlq.Filter{Topic: "orders"}
	for i, c := range []struct {
		spec  dlq.RunSpec
		chunk int
		want  int
	}{
		{dlq.RunSpec{Filter: orders}, 1000, 18},
		{dlq.RunSpec{Filter: orders}, 7, 18},
		{dlq.RunSpec{Filter: orders, Limit: 5}, 3, 5},
		{dlq.RunSpec{Filter: dlq.Filter{Statuses: []dlq.Status{dlq.Pending, dlq.Parked}}}, 10, 24},
		{dlq.RunSpec{Filter: dlq.Filter{IDs: []int64{list[9], list[2], list[3], list[9], list[19], 4711}}}, 2, 3},
		{dlq.RunSpec{Filter: dlq.Filter{Topic: "none"}}, 10, 0},
	} {
		c.spec.ID = fmt.Sprintf("run-%d", i)
		r := newRun(t, s, c.spec, c.chunk)
		require.Equal(t, dlq.RunCounts{Waiting: int64(c.want)}, r.Counts, c.spec.ID)
		items := itemsOf(t, s, r.ID, "")
		require.Len(t, items, c.want, c.spec.ID)
		for n, item := range items {
			require.Equal(t, dlq.ItemWaiting, item.State)
			require.Equal(t, get(t, s, item.EntryID).Version, item.Version)
			require.True(t, n == 0 || items[n-1].EntryID < item.EntryID)
		}
	}
	putMany(t, s, 100, 103)
	require.Len(t, itemsOf(t, s, "run-0", ""), 18)
	split, err := s.Split(t.Context(), dlq.Filter{})
	require.NoError(t, err)
	require.Equal(t, []dlq.TopicCount{{Topic: "orders", Count: 23}, {Topic: "invoices", Count: 5}}, split)
	page, err := s.RunItems(t.Context(), "run-0", dlq.ItemFilter{After: list[9], Limit: 2})
	require.NoError(t, err)
	require.Equal(t, []int64{list[10], list[11]}, []int64{page[0].EntryID, page[1].EntryID})
}

// NextItems brings entries with the exact bytes of the body that is to be sent, within its bounds.
func testRunNextItems(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	var list []int64
	for n, payload := range [][]byte{[]byte("\x00\xff"), {}, make([]byte, 5000), []byte("{}")} {
		list = append(list, put(t, s, letter(n, func(d *envelope.DeadLetter) {
			d.Message.Payload = payload
			d.Message.Metadata["bytes"] = "\xff"
		}))[0].ID)
	}
	edited, err := s.Revise(t.Context(), dlq.Revision{EntryID: list[3], Body: &dlq.Body{Payload: []byte("edited")}, Actor: "ana", At: noon})
	require.NoError(t, err)
	newRun(t, s, dlq.RunSpec{ID: "run-1"}, 100)
	items, err := s.NextItems(t.Context(), "run-1", 0, 10, 1<<20)
	require.NoError(t, err)
	require.Len(t, items, 4)
	for i, item := range items {
		require.Equal(t, list[i], item.EntryID)
		require.Equal(t, get(t, s, list[i]), item.Entry, "with its body")
	}
	require.Equal(t, []any{edited.Revision, "edited"}, []any{items[3].Revision, string(items[3].Entry.Body.Payload)})
	for want, c := range map[int]struct {
		after int64
		limit int
		bytes int64
	}{2: {0, 10, 4000}, 1: {list[1], 10, 10}, 3: {list[0], 10, 1 << 20}} {
		items, err := s.NextItems(t.Context(), "run-1", c.after, c.limit, c.bytes)
		require.NoError(t, err)
		require.Len(t, items, want)
	}
}

// A claim is a redrive of each entry, all or nothing with its record; what has changed since is skipped, and says by whom.
func testRunClaim(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	list := putMany(t, s, 0, 70)
	r := newRun(t, s, dlq.RunSpec{ID: "run-1"}, 100)
	mustChange(t, s, dlq.Change{Action: dlq.ActionResolve, IDs: list[5:6], Actor: "bob"})
	at := noon.Add(time.Hour)
	claimed := claimAll(t, s, r.ID, at, 100)
	require.Len(t, claimed, 69)
	for i := range claimed {
		stored := get(t, s, claimed[i].ID)
		claimed[i].Body = stored.Body
		require.Equal(t, &claimed[i], stored, "what is returned is what is stored")
	}
	require.Equal(t, []any{dlq.Retrying, 1, "run-1", "ana", at, at.Add(time.Hour)},
		[]any{claimed[0].Status, claimed[0].RedriveCount, claimed[0].Run, claimed[0].ChangedBy, claimed[0].LastRedriveAt, claimed[0].LeaseUntil})
	skipped := itemsOf(t, s, r.ID, dlq.ItemSkipped)
	require.Len(t, skipped, 1)
	require.Contains(t, skipped[0].Detail, "by bob")
	items := itemsOf(t, s, r.ID, dlq.ItemClaimed)
	require.Equal(t, []any{claimed[0].Version, 1, at.Add(time.Minute)}, []any{items[0].Version, items[0].Redrive, items[0].ClaimedUntil})
	records, _, err := s.Audit(t.Context(), dlq.AuditFilter{Run: r.ID, Action: dlq.ActionRedrive}, dlq.Page{Limit: dlq.MaxPage})
	require.NoError(t, err)
	require.Len(t, records, 69)
	require.Empty(t, claimAll(t, s, r.ID, at, 100), "nothing waits")
	kept, err := s.Stats(t.Context(), dlq.StatsQuery{})
	require.NoError(t, err)
	require.Equal(t, dlq.Counts{Retrying: 69, Resolved: 1}, kept.Counts)

	// Of two runs over the same entries one gets each.
	other := newRun(t, s, dlq.RunSpec{ID: "run-2", Filter: dlq.Filter{Statuses: []dlq.Status{dlq.Retrying}}}, 100)
	require.Equal(t, int64(69), other.Counts.Waiting)
	require.Empty(t, claimAll(t, s, other.ID, at, 100))
	require.Contains(t, itemsOf(t, s, other.ID, dlq.ItemSkipped)[0].Detail, "by ana")
	require.NoError(t, s.Recount(t.Context()))
	counted, err := s.Stats(t.Context(), dlq.StatsQuery{})
	require.NoError(t, err)
	require.Equal(t, kept.Counts, counted.Counts)
}

// What was published, refused and given up is recorded, in one step with the next claims; a step that is repeated changes nothing.
func testRunSteps(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	list := putMany(t, s, 0, 10)
	r := newRun(t, s, dlq.RunSpec{ID: "run-1"}, 100)
	at := noon.Add(time.Hour)
	require.Len(t, claimAll(t, s, r.ID, at, 6), 6)
	step := stepOf(r.ID, at.Add(time.Second))
	step.Published = list[0:3]
	step.Released = []dlq.RunRefusal{{EntryID: list[3], Detail: "broker is away"}}
	step.Skipped = []dlq.RunRefusal{{EntryID: list[4], Detail: "too large"}, {EntryID: list[8], Detail: "no JSON"}, {EntryID: list[8], Detail: "no JSON"}}
	want := dlq.RunCounts{Waiting: 4, Claimed: 1, Out: 3, Skipped: 2}
	for range 2 {
		require.Equal(t, want, mustStep(t, s, step).Run.Counts)
	}
	for id, status := range map[int64]dlq.Status{
		list[0]: dlq.Retrying, list[3]: dlq.Pending, list[4]: dlq.Pending, list[5]: dlq.Retrying, list[8]: dlq.Pending,
	} {
		require.Equal(t, status, get(t, s, id).Status)
	}
	require.Zero(t, get(t, s, list[3]).RedriveCount, "what was not sent does not count")
	skipped := itemsOf(t, s, r.ID, dlq.ItemSkipped)
	require.Equal(t, []string{"too large", "no JSON"}, []string{skipped[0].Detail, skipped[1].Detail})
	require.Len(t, claimAll(t, s, r.ID, at.Add(time.Minute), 100), 4, "what was given back is claimed again")
	closing := stepOf(r.ID, at.Add(2*time.Minute))
	closing.Published, closing.ClosePublished = append([]int64{list[3]}, list[5:8]...), true
	for range 2 {
		require.Equal(t, dlq.RunCounts{Claimed: 1, Out: 3, Succeeded: 4, Skipped: 2}, mustStep(t, s, closing).Run.Counts)
	}
	e := get(t, s, list[6])
	require.Equal(t, []any{dlq.Resolved, "ana", at.Add(2 * time.Minute)}, []any{e.Status, e.ResolvedBy, e.ResolvedAt})
	require.Equal(t, e.ResolvedAt, e.SucceededAt)
	got, err := s.Run(t.Context(), r.ID)
	require.NoError(t, err)
	require.Equal(t, at.Add(2*time.Minute).Add(1000*time.Hour), got.LeaseUntil, "a step extends the lease")
	require.Equal(t, int64(1), got.Version)
	kept, err := s.Stats(t.Context(), dlq.StatsQuery{})
	require.NoError(t, err)
	require.NoError(t, s.Recount(t.Context()))
	counted, err := s.Stats(t.Context(), dlq.StatsQuery{})
	require.NoError(t, err)
	require.Equal(t, counted.Counts, kept.Counts)
}

// A claim may bring a new revision of the body: both are there, or neither.
func testRunClaimWithBody(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	list := putMany(t, s, 0, 2)
	r := newRun(t, s, dlq.RunSpec{ID: "run-1"}, 100)
	mustChange(t, s, dlq.Change{Action: dlq.ActionDiscard, IDs: list[1:2]})
	step := stepOf(r.ID, noon.Add(time.Hour))
	for _, id := range list {
		step.Claims = append(step.Claims, dlq.RunClaim{EntryID: id, Version: 1, Body: &dlq.Body{Payload: []byte("\xffnew"), Headers: map[string]string{"a": "\xfe"}}})
	}
	stepped := mustStep(t, s, step)
	require.Len(t, stepped.Claimed, 1)
	e := get(t, s, list[0])
	require.Equal(t, []any{1, int64(4), "\xffnew"}, []any{e.Revision, e.Size, string(e.Body.Payload)})
	require.Equal(t, map[string]string{"a": "\xfe"}, e.Body.Headers)
	original, err := s.Body(t.Context(), list[0], 0)
	require.NoError(t, err)
	require.Equal(t, `{"n":0}`, string(original.Payload))
	_, err = s.Body(t.Context(), list[1], 1)
	require.ErrorIs(t, err, dlq.ErrNotFound)
	require.Zero(t, itemsOf(t, s, r.ID, dlq.ItemClaimed)[0].Revision, "the item remembers what it found")
}

// Outcomes are read from the entries, whoever recorded them and whenever: success, death, nothing in time, purged, taken by others.
func testRunSettle(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	list := putMany(t, s, 0, 8)
	r := newRun(t, s, dlq.RunSpec{ID: "run-1"}, 100)
	at := noon.Add(time.Hour)
	claimed := claimAll(t, s, r.ID, at, 100)
	step := stepOf(r.ID, at)
	step.Published = list[:6]
	mustStep(t, s, step)
	require.Equal(t, dlq.RunCounts{Claimed: 2, Out: 6}, settled(t, s, r.ID, at.Add(time.Second)), "nothing is known yet")

	// A success by a consumer whose clock is behind, a death, a death followed by a redrive by hand.
	mustChange(t, s, dlq.Change{Action: dlq.ActionSucceed, IDs: list[0:1], Actor: "redrive", At: at.Add(-time.Minute)})
	for _, i := range []int{1, 2} {
		e := get(t, s, list[i])
		put(t, s, redriven(e, at.Add(time.Minute), func(d *envelope.DeadLetter) { d.Err.Message = "closed" }))
	}
	mustChange(t, s, dlq.Change{Action: dlq.ActionRedrive, IDs: list[2:3], Actor: "bob", At: at.Add(2 * time.Minute)})
	// The process had published this one, and died before it could say so.
	mustChange(t, s, dlq.Change{Action: dlq.ActionSucceed, IDs: list[6:7], Actor: "redrive", At: at.Add(time.Minute)})
	// Succeeded and purged before anybody asked.
	mustChange(t, s, dlq.Change{Action: dlq.ActionSucceed, IDs: list[3:4], Actor: "redrive", At: at.Add(time.Second)})
	_, err := s.Purge(t.Context(), dlq.Purge{ClosedBefore: at.Add(2 * time.Second), Actor: "cron", At: at})
	require.NoError(t, err)

	now := at.Add(30 * time.Second)
	got := settled(t, s, r.ID, now)
	require.Equal(t, dlq.RunCounts{Claimed: 1, Out: 2, Succeeded: 1, Failed: 2, Lost: 2}, got)
	failed := itemsOf(t, s, r.ID, dlq.ItemFailed)
	require.Equal(t, []string{"closed", "closed"}, []string{failed[0].Detail, failed[1].Detail})
	require.Equal(t, now, failed[0].SettledAt)

	// The claim that was never published waits again, with the entry as it is now; its redrive has another number.
	got = settled(t, s, r.ID, at.Add(time.Minute))
	require.Equal(t, dlq.RunCounts{Waiting: 1, Out: 2, Succeeded: 1, Failed: 2, Lost: 2}, got)
	again := claimAll(t, s, r.ID, at.Add(time.Minute), 100)
	require.Len(t, again, 1)
	require.Equal(t, []any{list[7], 2, claimed[7].Version + 1}, []any{again[0].ID, again[0].RedriveCount, again[0].Version})
	// No outcome within the timeout.
	got = settled(t, s, r.ID, at.Add(time.Hour))
	require.Equal(t, int64(4), got.Lost)
	got = settled(t, s, r.ID, at.Add(3*time.Hour))
	require.Equal(t, int64(1), got.Waiting, "the claim was never published")
	_, n, err := s.SettleRun(t.Context(), r.ID, holder, at.Add(3*time.Hour), 100)
	require.NoError(t, err)
	require.Zero(t, n)
}

// Edits: a new revision by compare-and-set; every revision stays.
func testRevise(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	before := get(t, s, id)
	revision := dlq.Revision{
		EntryID: id, Version: 1, Body: &dlq.Body{UUID: "u", Payload: []byte("\x00one"), Headers: map[string]string{"h": "\xff"}},
		Actor: "bob", Note: "typo", Detail: map[string]string{"diff": "…"}, At: noon.Add(time.Hour),
	}
	e, err := s.Revise(t.Context(), revision)
	require.NoError(t, err)
	require.Equal(t, []any{1, int64(4), int64(2), dlq.Pending, "bob"}, []any{e.Revision, e.Size, e.Version, e.Status, e.ChangedBy})
	_, err = s.Revise(t.Context(), revision)
	var conflict *dlq.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, "bob", conflict.By)
	revision.Version = 0
	_, err = s.Revise(t.Context(), revision)
	require.NoError(t, err)
	require.Equal(t, 2, get(t, s, id).Revision)
	original, err := s.Body(t.Context(), id, 0)
	require.NoError(t, err)
	require.Equal(t, before.Body, original)
	records, _, err := s.Audit(t.Context(), dlq.AuditFilter{Action: dlq.ActionEdit}, dlq.Page{Order: dlq.OldestFirst})
	require.NoError(t, err)
	require.Len(t, records, 2)
	require.Equal(t, map[string]string{"diff": "…", "revision": "1"}, records[0].Detail)
	claim(t, s, id, noon.Add(2*time.Hour))
	_, err = s.Revise(t.Context(), revision)
	require.ErrorIs(t, err, dlq.ErrConflict, "it is out")
	revision.EntryID = 4711
	_, err = s.Revise(t.Context(), revision)
	require.ErrorIs(t, err, dlq.ErrNotFound)
	for _, bad := range []dlq.Revision{{EntryID: id}, {EntryID: id, Body: &dlq.Body{}, At: noon}, {EntryID: id, Body: &dlq.Body{}, Actor: "ana"}} {
		_, err = s.Revise(t.Context(), bad)
		require.ErrorIs(t, err, dlq.ErrInvalid)
	}
}

// Import: entries as they were, once, all or none.
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
	exported := dlq.Exported{Entry: *parked, Bodies: []dlq.Body{first, second}}
	by := dlq.By{Actor: "ana", Note: "moved"}
	receipts, err := s.Import(t.Context(), by, noon, exported, exported)
	require.NoError(t, err)
	require.Equal(t, []dlq.Receipt{{ID: receipts[0].ID, Outcome: dlq.Stored}, {ID: receipts[0].ID, Outcome: dlq.Seen}}, receipts)
	got := get(t, s, receipts[0].ID)
	want := *parked
	want.ID, want.Body = receipts[0].ID, &second
	require.Equal(t, &want, got)
	body, err := s.Body(t.Context(), got.ID, 0)
	require.NoError(t, err)
	require.Equal(t, &first, body)
	receipts, err = s.Import(t.Context(), by, noon, exported)
	require.NoError(t, err)
	require.Equal(t, dlq.Receipt{ID: got.ID, Outcome: dlq.Seen}, receipts[0])
	require.Equal(t, got, get(t, s, got.ID), "what is there stays as it is")
	kept, err := s.Stats(t.Context(), dlq.StatsQuery{})
	require.NoError(t, err)
	require.Equal(t, dlq.Counts{Pending: 1, Parked: 1}, kept.Counts)

	bad := exported
	bad.Entry.Key = dlq.Key{}
	other := dlq.Exported{Entry: *letter(2), Bodies: []dlq.Body{*letter(2).Body}}
	_, err = s.Import(t.Context(), by, noon, other, bad)
	require.ErrorIs(t, err, dlq.ErrInvalid)
	_, err = s.Import(t.Context(), dlq.By{}, noon, other)
	require.ErrorIs(t, err, dlq.ErrInvalid)
	require.Len(t, all(t, s, dlq.Filter{}), 2)
}
