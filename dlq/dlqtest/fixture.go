package dlqtest

import (
	"cmp"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// noon is when the first letter of a test dies. It is not on the hour, and has microseconds.
var noon = time.Date(2026, time.February, 28, 12, 7, 42, 123456000, time.UTC)

// newDeath makes the n-th dead letter of a test.
func newDeath(n int) *envelope.DeadLetter {
	m := message.NewMessage(fmt.Sprintf("uuid-%d", n), []byte(fmt.Sprintf(`{"n":%d}`, n)))
	m.Metadata[envelope.KeyMessageID] = fmt.Sprintf("message-%d", n)
	m.Metadata[envelope.KeyRetryCount] = "3"
	m.Metadata["tenant"] = "acme"
	at := noon.Add(time.Duration(n) * time.Second)
	return &envelope.DeadLetter{
		Message: m,
		Reason:  envelope.ReasonExhausted,
		Err: envelope.Error{
			Message: fmt.Sprintf("payment %d: timeout after %dms", n, 100+n), Code: "504", Trace: "main.pay()",
		},
		Class: "*main.TimeoutError", Rule: "net.Error timeout", Handler: "charge",
		Origin:   envelope.Origin{Broker: "kafka", Topic: "orders", Consumer: "billing", Position: fmt.Sprintf("0/%d", n)},
		Attempts: 4, FirstFailure: at.Add(-time.Minute), At: at,
	}
}

// letter makes the n-th entry of a test, changed by the edits.
func letter(n int, edits ...func(*envelope.DeadLetter)) *dlq.Entry {
	d := newDeath(n)
	for _, edit := range edits {
		edit(d)
	}
	return dlq.NewEntry(d)
}

func (w *world) put(letters ...*dlq.Entry) []driver.Receipt {
	w.Helper()
	receipts := must(w.Put(w.Context(), letters...))(w)
	require.Len(w, receipts, len(letters))
	return receipts
}

func (w *world) get(id int64) *dlq.Entry {
	w.Helper()
	return must(w.Get(w.Context(), id))(w)
}

// must returns the result of a call that must succeed: must(w.Purge(ctx, p))(w).
func must[T any](value T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return value
	}
}

// fails requires that a call fails with an error: fails(w.Get(ctx, id))(w, dlq.ErrNotFound).
func fails[T any](_ T, err error) func(t testing.TB, want error, msgAndArgs ...any) {
	return func(t testing.TB, want error, msgAndArgs ...any) {
		t.Helper()
		require.ErrorIs(t, err, want, msgAndArgs...)
	}
}

// purge purges the RESOLVED entries that were closed before a time, and returns their number.
func (w *world) purge(before, at time.Time) int {
	w.Helper()
	return must(w.Purge(w.Context(), dlq.Purge{ClosedBefore: before, Actor: "cron", At: at}))(w)
}

// dies gives a dead letter another error.
func dies(text string) func(*envelope.DeadLetter) {
	return func(d *envelope.DeadLetter) { d.Err.Message = text }
}

// header gives a dead letter's message another header.
func header(key, value string) func(*envelope.DeadLetter) {
	return func(d *envelope.DeadLetter) { d.Message.Metadata[key] = value }
}

// topic gives a dead letter another topic.
func topic(name string) func(*envelope.DeadLetter) {
	return func(d *envelope.DeadLetter) { d.Origin.Topic = name }
}

// payload gives a dead letter's message another payload.
func payload[T string | []byte](p T) func(*envelope.DeadLetter) {
	return func(d *envelope.DeadLetter) { d.Message.Payload = []byte(p) }
}

// diedAt moves a death to another time.
func diedAt(at time.Time) func(*envelope.DeadLetter) {
	return func(d *envelope.DeadLetter) { d.At = at }
}

// atOnce calls do with each number below n, all at once, and waits for them.
func atOnce(n int, do func(i int)) {
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { <-start; do(i) })
	}
	close(start)
	all.Wait()
}

// recorded returns a page of the audit log, which must have n records.
func (w *world) recorded(n int, f dlq.AuditFilter, p dlq.Page) []driver.AuditRecord {
	w.Helper()
	records, _, err := w.Audit(w.Context(), f, p)
	require.NoError(w, err)
	require.Len(w, records, n)
	return records
}

// readAll reads a listing page by page to its end.
func readAll[T any](w *world, p dlq.Page, read func(dlq.Page) ([]T, string, error)) (all []T) {
	w.Helper()
	for {
		list, next, err := read(p)
		require.NoError(w, err)
		require.LessOrEqual(w, len(list), p.Limit)
		all = append(all, list...)
		if next == "" {
			return all
		}
		require.Len(w, list, p.Limit)
		p.After = next
	}
}

// change applies one action to one entry and returns its outcome.
func (w *world) change(c driver.Change) (dlq.Entry, error) {
	w.Helper()
	c.Actor = cmp.Or(c.Actor, "ana")
	c.At = cmp.Or(c.At, noon.Add(time.Hour))
	c.Lease = cmp.Or(c.Lease, time.Minute)
	results := must(w.Change(w.Context(), c))(w)
	require.Len(w, results, len(c.IDs))
	require.Equal(w, c.IDs[0], results[0].ID)
	return results[0].Entry, results[0].Err
}

func (w *world) mustChange(c driver.Change) dlq.Entry {
	w.Helper()
	return must(w.change(c))(w)
}

// act applies one action of ana to entries that allow it.
func (w *world) act(action driver.Action, at time.Time, ids ...int64) {
	w.Helper()
	results := must(w.Change(w.Context(), driver.Change{
		Action: action, IDs: ids, Actor: "ana", At: at, Lease: time.Minute,
	}))(w)
	require.Len(w, results, len(ids))
	for _, r := range results {
		require.NoError(w, r.Err)
	}
}

// redriven returns the dead letter of the entry's redriven message, as the pipeline of its consumer would report it.
func redriven(e *dlq.Entry, at time.Time, edits ...func(*envelope.DeadLetter)) *dlq.Entry {
	sent := dlq.RedriveMessage(e)
	d := newDeath(0)
	d.Message, d.At, d.Origin = sent, at, e.Origin
	d.Origin.Position = "0/999"
	for _, edit := range edits {
		edit(d)
	}
	return dlq.NewEntry(d)
}

func (w *world) all(f dlq.Filter) []dlq.Entry {
	w.Helper()
	listing := must(w.List(w.Context(), f, dlq.Page{Limit: driver.MaxPage, Order: driver.OldestFirst}))(w)
	require.Empty(w, listing.Next)
	return listing.Entries
}

func ids(entries []dlq.Entry) []int64 {
	list := make([]int64, 0, len(entries))
	for i := range entries {
		list = append(list, entries[i].ID)
	}
	return list
}

// runOf stores n entries and creates a run of them; holder has its lease.
func (w *world) runOf(n int) ([]int64, *redrive.Run) {
	w.Helper()
	return w.putMany(0, n), w.newRun(redrive.Spec{ID: "run-1"}, 100)
}

// freeRun is runOf three entries, without a holder.
func (w *world) freeRun() ([]int64, string) {
	w.Helper()
	list, r := w.runOf(3)
	must(w.LeaseRun(w.Context(), r.ID, holder, noon, 0))(w)
	return list, r.ID
}

// newRun creates a run and freezes its set; holder has its lease.
func (w *world) newRun(spec redrive.Spec, chunk int) *redrive.Run {
	w.Helper()
	r := w.createRun(must(spec.Resolve())(w))
	for r.FrozenTo < r.FreezeTo {
		before := r.FrozenTo
		r = must(w.FreezeRun(w.Context(), r.ID, holder, noon, chunk))(w)
		require.Greater(w, r.FrozenTo, before)
	}
	return r
}

// createRun creates a run whose set is not frozen; it is running already, and holder has its lease.
func (w *world) createRun(spec redrive.Spec) *redrive.Run {
	w.Helper()
	r, audit := unfrozen(spec, "ana")
	r.State = redrive.Running
	require.NoError(w, w.CreateRun(w.Context(), r, audit))
	return must(w.LeaseRun(w.Context(), r.ID, holder, noon, 1000*time.Hour))(w)
}

// unfrozen returns a new run that a person has started, with its audit record.
func unfrozen(spec redrive.Spec, by string) (*redrive.Run, driver.AuditRecord) {
	return &redrive.Run{Run: wire.Run{
		ID: spec.ID, Spec: spec, State: redrive.Preparing, Version: 1, CreatedAt: noon, CreatedBy: by, ChangedAt: noon,
		ChangedBy: by,
	}}, driver.AuditRecord{At: noon, Actor: by, Action: redrive.ActionStart, Run: spec.ID}
}

const holder = "process 1"

func stepOf(run string, at time.Time) redrive.Step {
	return redrive.Step{
		Run: run, Holder: holder, At: at, Lease: 1000 * time.Hour, Actor: "ana", OutcomeTimeout: time.Hour,
		ClaimTimeout: time.Minute,
	}
}

func (w *world) mustStep(step redrive.Step) redrive.Stepped {
	w.Helper()
	stepped := must(w.StepRun(w.Context(), step))(w)
	require.Len(w, stepped.Changed[driver.ActionRedrive], len(stepped.Claimed))
	return stepped
}

// claimAll claims the next items of a run.
func (w *world) claimAll(run string, at time.Time, limit int) []dlq.Entry {
	w.Helper()
	items := must(w.NextItems(w.Context(), run, 0, limit, 1<<30))(w)
	step := stepOf(run, at)
	for _, item := range items {
		step.Claims = append(step.Claims, redrive.Claim{EntryID: item.EntryID, Version: item.Version})
	}
	return w.mustStep(step).Claimed
}

func (w *world) settled(run string, at time.Time) redrive.Counts {
	w.Helper()
	r, _, err := w.SettleRun(w.Context(), run, holder, at, driver.MaxPage)
	require.NoError(w, err)
	return r.Counts
}

func (w *world) itemsOf(run string, state redrive.ItemState) []redrive.Item {
	w.Helper()
	return must(w.RunItems(w.Context(), run, redrive.ItemFilter{State: state, Limit: driver.MaxPage}))(w)
}
