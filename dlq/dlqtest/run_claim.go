package dlqtest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// A claim redrives each entry in one transaction with its audit record; entries that have changed since are skipped,
// with the name of the person who changed them.
func testRunClaim(w *world) {
	list := w.putMany(0, 70)
	r := w.newRun(redrive.Spec{ID: "run-1"}, 100)
	w.mustChange(driver.Change{Action: driver.ActionResolve, IDs: list[5:6], Actor: "bob"})
	at := noon.Add(time.Hour)
	claimed := w.claimAll(r.ID, at, 100)
	require.Len(w, claimed, 69)
	for i := range claimed {
		stored := w.get(claimed[i].ID)
		claimed[i].Body = stored.Body
		require.Equal(w, &claimed[i], stored, "the returned entry equals the stored one")
	}
	require.Equal(w, []any{dlq.Retrying, 1, "run-1", "ana", at, at.Add(time.Hour)},
		[]any{
			claimed[0].Status, claimed[0].RedriveCount, claimed[0].Run, claimed[0].ChangedBy, claimed[0].LastRedriveAt,
			claimed[0].LeaseUntil,
		})
	skipped := w.itemsOf(r.ID, redrive.ItemSkipped)
	require.Len(w, skipped, 1)
	require.Contains(w, skipped[0].Detail, "by bob")
	items := w.itemsOf(r.ID, redrive.ItemClaimed)
	require.Equal(w, []any{claimed[0].Version, 1, at.Add(time.Minute)},
		[]any{items[0].Version, items[0].Redrive, items[0].ClaimedUntil})
	records := w.recorded(dlq.AuditFilter{Run: r.ID, Action: driver.ActionRedrive},
		dlq.Page{Limit: driver.MaxPage})
	require.Len(w, records, 69)
	require.Empty(w, w.claimAll(r.ID, at, 100), "no item is waiting")
	w.requireCounts(driver.Counts{Retrying: 69, Resolved: 1})

	// If two runs have the same entries, each entry is claimed by one of them.
	other := w.newRun(redrive.Spec{ID: "run-2", Filter: dlq.Filter{Statuses: []dlq.Status{dlq.Retrying}}}, 100)
	require.Equal(w, int64(69), other.Counts.Waiting)
	require.Empty(w, w.claimAll(other.ID, at, 100))
	require.Contains(w, w.itemsOf(other.ID, redrive.ItemSkipped)[0].Detail, "by ana")
	w.requireCounts(driver.Counts{Retrying: 69, Resolved: 1})
}

// Items that were published, refused or released are recorded in one step with the next claims; repeating a step
// changes nothing.
func testRunSteps(w *world) {
	list := w.putMany(0, 10)
	r := w.newRun(redrive.Spec{ID: "run-1"}, 100)
	at := noon.Add(time.Hour)
	require.Len(w, w.claimAll(r.ID, at, 6), 6)
	step := stepOf(r.ID, at.Add(time.Second))
	step.Published = list[0:3]
	step.Released = []redrive.Refusal{{EntryID: list[3], Detail: "broker is down"}}
	step.Skipped = []redrive.Refusal{
		{EntryID: list[4], Detail: "too large"},
		{EntryID: list[8], Detail: "no JSON"},
		{EntryID: list[8], Detail: "no JSON"},
	}
	want := redrive.Counts{Waiting: 4, Claimed: 1, Out: 3, Skipped: 2}
	for range 2 {
		require.Equal(w, want, w.mustStep(step).Run.Counts)
	}
	for id, status := range map[int64]dlq.Status{
		list[0]: dlq.Retrying, list[3]: dlq.Pending, list[4]: dlq.Pending, list[5]: dlq.Retrying, list[8]: dlq.Pending,
	} {
		require.Equal(w, status, w.get(id).Status)
	}
	require.Zero(w, w.get(list[3]).RedriveCount, "a message that was not sent does not count")
	skipped := w.itemsOf(r.ID, redrive.ItemSkipped)
	require.Equal(w, []string{"too large", "no JSON"}, []string{skipped[0].Detail, skipped[1].Detail})
	require.Len(w, w.claimAll(r.ID, at.Add(time.Minute), 100), 4, "returned entries are claimed again")
	closing := stepOf(r.ID, at.Add(2*time.Minute))
	closing.Published, closing.ClosePublished = append([]int64{list[3]}, list[5:8]...), true
	for range 2 {
		require.Equal(w, redrive.Counts{Claimed: 1, Out: 3, Succeeded: 4, Skipped: 2}, w.mustStep(closing).Run.Counts)
	}
	e := w.get(list[6])
	require.Equal(w, []any{dlq.Resolved, "ana", at.Add(2 * time.Minute)}, []any{e.Status, e.ResolvedBy, e.ResolvedAt})
	require.Equal(w, e.ResolvedAt, e.SucceededAt)
	got := must(w.Run(w.Context(), r.ID))(w)
	require.Equal(w, at.Add(2*time.Minute).Add(1000*time.Hour), got.LeaseUntil, "a step extends the lease")
	require.Equal(w, int64(1), got.Version)
	w.requireCounts(driver.Counts{Pending: 2, Retrying: 4, Resolved: 4})
}

// A claim may add a new revision of the body: either both are stored or neither is.
func testRunClaimWithBody(w *world) {
	list := w.putMany(0, 2)
	r := w.newRun(redrive.Spec{ID: "run-1"}, 100)
	w.mustChange(driver.Change{Action: driver.ActionDiscard, IDs: list[1:2]})
	step := stepOf(r.ID, noon.Add(time.Hour))
	for _, id := range list {
		step.Claims = append(step.Claims, redrive.Claim{
			EntryID: id, Version: 1,
			Body: &dlq.Body{Payload: []byte("\xffnew"), Headers: map[string]string{"a": "\xfe"}},
		})
	}
	stepped := w.mustStep(step)
	require.Len(w, stepped.Claimed, 1)
	e := w.get(list[0])
	require.Equal(w, []any{1, int64(4), "\xffnew"}, []any{e.Revision, e.Size, string(e.Body.Payload)})
	require.Equal(w, map[string]string{"a": "\xfe"}, e.Body.Headers)
	require.Equal(w, `{"n":0}`, string(must(w.Body(w.Context(), list[0], 0))(w).Payload))
	_, err := w.Body(w.Context(), list[1], 1)
	require.ErrorIs(w, err, dlq.ErrNotFound)
	require.Zero(w, w.itemsOf(r.ID, redrive.ItemClaimed)[0].Revision, "the item has the version that it found")
}
