package dlqtest

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
)

// The frozen set has the entries that the filter selects at that time, whatever the chunk size; later entries and later
// deaths are not in it.
func testRunFreeze(w *world) {
	list := w.putMany(0, 20)
	w.putMany(20, 25, func(d *envelope.DeadLetter) { d.Origin.Topic = "invoices" })
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
	w.putMany(100, 103)
	require.Len(w, w.itemsOf("run-0", ""), 18)
	split := must(w.Split(w.Context(), dlq.Filter{}))(w)
	require.Equal(w, []redrive.TopicCount{{Topic: "orders", Count: 23}, {Topic: "invoices", Count: 5}}, split)
	page := must(w.RunItems(w.Context(), "run-0", redrive.ItemFilter{After: list[9], Limit: 2}))(w)
	require.Equal(w, []int64{list[10], list[11]}, []int64{page[0].EntryID, page[1].EntryID})
}

// NextItems returns entries with the exact bytes of the body to send, within its limits.
func testRunNextItems(w *world) {
	var list []int64
	for n, payload := range [][]byte{[]byte("\x00\xff"), {}, make([]byte, 5000), []byte("{}")} {
		list = append(list, w.put(letter(n, func(d *envelope.DeadLetter) {
			d.Message.Payload = payload
			d.Message.Metadata["bytes"] = "\xff"
		}))[0].ID)
	}
	edited := must(w.Revise(w.Context(), driver.Revision{
		EntryID: list[3],
		Body:    &dlq.Body{Payload: []byte("edited")}, Actor: "ana", At: noon,
	}))(w)
	w.newRun(redrive.Spec{ID: "run-1"}, 100)
	items := must(w.NextItems(w.Context(), "run-1", 0, 10, 1<<20))(w)
	require.Len(w, items, 4)
	for i, item := range items {
		require.Equal(w, list[i], item.EntryID)
		require.Equal(w, w.get(list[i]), item.Entry, "with its body")
	}
	require.Equal(w, []any{edited.Revision, "edited"}, []any{items[3].Revision, string(items[3].Entry.Body.Payload)})
	for want, c := range map[int]struct {
		after int64
		limit int
		bytes int64
	}{2: {0, 10, 4000}, 1: {list[1], 10, 10}, 3: {list[0], 10, 1 << 20}} {
		require.Len(w, must(w.NextItems(w.Context(), "run-1", c.after, c.limit, c.bytes))(w), want)
	}
}
