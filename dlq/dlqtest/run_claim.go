package dlqtest

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// A claim redrives each entry in one transaction with its audit record; entries that have changed since are skipped,
// with the name of the person who changed them.
func (w *world) TestRunClaim() {
	list, r := w.runOf(70)
	w.mustChange(driver.Change{Action: driver.ActionResolve, IDs: list[5:6], Actor: "bob"})
	at := noon.Add(time.Hour)
	claimed := w.claimAll(r.ID, at, 100)
	require.Len(w, claimed, 69)
	for i := range claimed {
		stored := w.get(claimed[i].ID)
		claimed[i].Body = stored.Body
		require.Equal(w, &claimed[i], stored, "the returned entry equals the stored one")
	}
	e := &claimed[0]
	require.Equal(w, []any{dlq.Retrying, 1, "run-1", "ana", at, at.Add(time.Hour)},
		[]any{e.Status, e.RedriveCount, e.Run, e.ChangedBy, e.LastRedriveAt, e.LeaseUntil})
	skipped := w.itemsOf(r.ID, redrive.ItemSkipped)
	require.Len(w, skipped, 1)
	require.Contains(w, skipped[0].Detail, "by bob")
	items := w.itemsOf(r.ID, redrive.ItemClaimed)
	require.Equal(w, []any{claimed[0].Version, 1, at.Add(time.Minute)},
		[]any{items[0].Version, items[0].Redrive, items[0].ClaimedUntil})
	w.recorded(69, dlq.AuditFilter{Run: r.ID, Action: driver.ActionRedrive}, dlq.Page{Limit: driver.MaxPage})
	require.Empty(w, w.claimAll(r.ID, at, 100), "no item is waiting")
	w.requireCounts(driver.Counts{Retrying: 69, Resolved: 1})

	// If two runs have the same entries, each entry is claimed by one of them.
	other := w.newRun(redrive.Spec{ID: "run-2", Filter: dlq.Filter{Statuses: []dlq.Status{dlq.Retrying}}}, 100)
	require.Equal(w, int64(69), other.Counts.Waiting)
	require.Empty(w, w.claimAll(other.ID, at, 100))
	require.Contains(w, w.itemsOf(other.ID, redrive.ItemSkipped)[0].Detail, "by ana")
	w.requireCounts(driver.Counts{Retrying: 69, Resolved: 1})
}

// Only a running run claims, even if its driver does not know yet that a person has paused or cancelled it.
func (w *world) TestRunClaimsWhileRunning() {
	_, r := w.runOf(3)
	for _, state := range redrive.States() {
		r.State, r.Version = state, r.Version+1
		require.NoError(w, w.ChangeRun(w.Context(), r, driver.AuditRecord{
			At: noon, Actor: "bob", Action: redrive.ActionAdjust, Run: r.ID,
		}))
		require.Equal(w, state == redrive.Running, len(w.claimAll(r.ID, noon, 1)) == 1, state)
	}
}

// Items that were published, refused or released are recorded in one step with the next claims; repeating a step
// changes nothing.
func (w *world) TestRunSteps() {
	list, r := w.runOf(10)
	at := noon.Add(time.Hour)
	require.Len(w, w.claimAll(r.ID, at, 6), 6)
	step := stepOf(r.ID, at.Add(time.Second))
	step.Published = list[0:3]
	step.Released = []redrive.Refusal{{EntryID: list[3], Detail: "broker is down"}}
	step.Skipped = []redrive.Refusal{
		{EntryID: list[4], Detail: "too large"}, {EntryID: list[8], Detail: "no JSON"}, {EntryID: list[8], Detail: "no JSON"},
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

// If a publish is the only outcome, a published message that died before the step was recorded is a failure, and its
// entry waits for a person.
func (w *world) TestRunClosePublished() {
	list, r := w.runOf(3)
	at := noon.Add(time.Hour)
	require.Len(w, w.claimAll(r.ID, at, 100), 3)
	w.put(redriven(w.get(list[1]), at.Add(time.Second), dies("closed")))
	step := stepOf(r.ID, at.Add(time.Minute))
	step.Published, step.ClosePublished = list, true
	for range 2 {
		w.mustStep(step)
		require.Equal(w, redrive.Counts{Succeeded: 2, Failed: 1}, w.settled(r.ID, step.At))
	}
	require.Equal(w, "closed", w.itemsOf(r.ID, redrive.ItemFailed)[0].Detail)
	w.requireCounts(driver.Counts{Pending: 1, Resolved: 2})
}

// A claim may add a new revision of the body: either both are stored or neither is.
func (w *world) TestRunClaimWithBody() {
	list, r := w.runOf(2)
	w.mustChange(driver.Change{Action: driver.ActionDiscard, IDs: list[1:2]})
	step := stepOf(r.ID, noon.Add(time.Hour))
	for _, id := range list {
		step.Claims = append(step.Claims, redrive.Claim{
			EntryID: id, Version: 1,
			Body: &dlq.Body{Payload: []byte("\xffnew"), Headers: map[string]string{"a": "\xfe"}},
		})
	}
	require.Len(w, w.mustStep(step).Claimed, 1)
	e := w.get(list[0])
	require.Equal(w, []any{1, int64(4), "\xffnew"}, []any{e.Revision, e.Size, string(e.Body.Payload)})
	require.Equal(w, map[string]string{"a": "\xfe"}, e.Body.Headers)
	require.Equal(w, `{"n":0}`, string(must(w.Body(w.Context(), list[0], 0))(w).Payload))
	fails(w.Body(w.Context(), list[1], 1))(w, dlq.ErrNotFound)
	require.Zero(w, w.itemsOf(r.ID, redrive.ItemClaimed)[0].Revision, "the item has the version that it found")
}

// A step's known entries are used where they match the stored ones, and ignored where they do not: the result is the
// same as without them.
func (w *world) TestRunKnown() {
	list, r := w.runOf(70)
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
	w.succeeds(list[3], at.Add(time.Second))
	w.mustStep(closing)
	require.Equal(w, redrive.Counts{Waiting: 30, Claimed: 19, Succeeded: 20, Skipped: 1}, w.settled(r.ID, at))
	require.Equal(w, "redrive", w.get(list[3]).ResolvedBy, "its consumer reported first")
	require.Equal(w, "ana", w.get(list[4]).ResolvedBy)

	// A repeated step records nothing twice.
	w.recorded(39, dlq.AuditFilter{Run: r.ID, Action: driver.ActionRedrive}, dlq.Page{Limit: driver.MaxPage})
	w.recorded(20, dlq.AuditFilter{Run: r.ID, Action: driver.ActionSucceed}, dlq.Page{Limit: driver.MaxPage})
	w.requireCounts(driver.Counts{Pending: 30, Retrying: 19, Resolved: 21})
}

// A run gets the complete payload even if the database stores it in several rows, and so does an entry whose payload
// the run has edited.
func (w *world) TestRunLargePayload() {
	large := bytes.Repeat([]byte("0123456789"), 250_000)
	id := w.put(letter(0, payload(large)))[0].ID
	r := w.newRun(redrive.Spec{ID: "run-1"}, 100)
	items := must(w.NextItems(w.Context(), r.ID, 0, 10, 1<<30))(w)
	got := items[0].Entry.Body.Payload
	require.True(w, bytes.Equal(large, got), "%d of %d bytes", len(got), len(large))
	step := stepOf(r.ID, noon)
	edited := append([]byte("edited"), large...)
	step.Claims = []redrive.Claim{{EntryID: id, Version: items[0].Version, Body: &dlq.Body{Payload: edited}}}
	require.Len(w, w.mustStep(step).Claimed, 1)
	require.True(w, bytes.Equal(edited, w.get(id).Body.Payload))
}

// The frozen set has the entries that the filter selects at that time, whatever the chunk size; later entries and later
// deaths are not in it.
func (w *world) TestRunFreeze() {
	list := w.putMany(0, 20)
	w.putMany(20, 25, topic("invoices"))
	w.mustChange(driver.Change{Action: driver.ActionDiscard, IDs: list[3:4]})
	w.mustChange(driver.Change{Action: driver.ActionPark, IDs: list[4:5]})
	orders := dlq.Filter{Topic: "orders"}
	for i, c := range []struct {
		spec  redrive.Spec
		chunk int
		want  int
	}{
		{redrive.Spec{Filter: orders}, 1000, 18},
		{redrive.Spec{Filter: orders}, 7, 18},
		{redrive.Spec{Filter: orders, Limit: 5}, 3, 5},
		{redrive.Spec{Filter: dlq.Filter{Statuses: []dlq.Status{dlq.Pending, dlq.Parked}}}, 10, 24},
		{redrive.Spec{Filter: dlq.Filter{IDs: []int64{list[9], list[2], list[3], list[9], list[19], 4711}}}, 2, 3},
		{redrive.Spec{Filter: dlq.Filter{IDs: list[5:9]}, Limit: 2}, 10, 2},
		{redrive.Spec{Filter: dlq.Filter{Topic: "none"}}, 10, 0},
		{redrive.Spec{Filter: dlq.Filter{IDs: []int64{}}}, 10, 0}, // nothing, not everything
	} {
		c.spec.ID = fmt.Sprintf("run-%d", i)
		r := w.newRun(c.spec, c.chunk)
		require.Equal(w, redrive.Counts{Waiting: int64(c.want)}, r.Counts, c.spec.ID)
		items := w.itemsOf(r.ID, "")
		require.Len(w, items, c.want, c.spec.ID)
		for n, item := range items {
			require.Equal(w, redrive.ItemWaiting, item.State)
			require.Equal(w, w.get(item.EntryID).Version, item.Version)
			require.True(w, n == 0 || items[n-1].EntryID < item.EntryID)
		}
	}
	// Each text is read, and elsewhere the store has no time for other writers meanwhile.
	text := must(redrive.Spec{ID: "run-text", Filter: dlq.Filter{ErrorText: "no such text"}}.Resolve())(w)
	r := w.createRun(text)
	r = must(w.FreezeRun(w.Context(), r.ID, holder, noon, 10))(w)
	require.Less(w, r.FrozenTo, r.FreezeTo, "a step reads at most 10 entries")
	w.putMany(100, 103)
	require.Len(w, w.itemsOf("run-0", ""), 18)
	split := must(w.Split(w.Context(), dlq.Filter{}))(w)
	require.Equal(w, []redrive.TopicCount{{Topic: "orders", Count: 23}, {Topic: "invoices", Count: 5}}, split)
	page := must(w.RunItems(w.Context(), "run-0", redrive.ItemFilter{After: list[9], Limit: 2}))(w)
	require.Equal(w, []int64{list[10], list[11]}, []int64{page[0].EntryID, page[1].EntryID})
}

// NextItems returns entries with the exact bytes of the body to send, within its limits.
func (w *world) TestRunNextItems() {
	var list []int64
	for n, sent := range []string{"\x00\xff", "", strings.Repeat("\x00", 5000), "{}"} {
		list = append(list, w.put(letter(n, payload(sent), header("bytes", "\xff")))[0].ID)
	}
	w.edit(list[3], "edited", noon)
	w.newRun(redrive.Spec{ID: "run-1"}, 100)
	items := must(w.NextItems(w.Context(), "run-1", 0, 10, 1<<20))(w)
	require.Len(w, items, 4)
	for i, item := range items {
		require.Equal(w, list[i], item.EntryID)
		require.Equal(w, w.get(list[i]), item.Entry, "with its body")
	}
	require.Equal(w, []any{1, "edited"}, []any{items[3].Revision, string(items[3].Entry.Body.Payload)})
	for want, c := range map[int]struct {
		after int64
		limit int
		bytes int64
	}{2: {0, 10, 4000}, 1: {list[1], 10, 10}, 3: {list[0], 10, 1 << 20}} {
		require.Len(w, must(w.NextItems(w.Context(), "run-1", c.after, c.limit, c.bytes))(w), want)
	}
}
