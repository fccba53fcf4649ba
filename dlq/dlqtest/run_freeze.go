package dlqtest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
)

// The frozen set has the entries that the filter selects at that time, whatever the chunk size; later entries and later
// deaths are not in it.
func testRunFreeze(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	list := putMany(t, s, 0, 20)
	putMany(t, s, 20, 25, func(d *envelope.DeadLetter) { d.Origin.Topic = "invoices" })
	mustChange(t, s, driver.Change{Action: driver.ActionDiscard, IDs: list[3:4]})
	mustChange(t, s, driver.Change{Action: driver.ActionPark, IDs: list[4:5]})
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
		r := newRun(t, s, c.spec, c.chunk)
		require.Equal(t, redrive.Counts{Waiting: int64(c.want)}, r.Counts, c.spec.ID)
		items := itemsOf(t, s, r.ID, "")
		require.Len(t, items, c.want, c.spec.ID)
		for n, item := range items {
			require.Equal(t, redrive.ItemWaiting, item.State)
			require.Equal(t, get(t, s, item.EntryID).Version, item.Version)
			require.True(t, n == 0 || items[n-1].EntryID < item.EntryID)
		}
	}
	putMany(t, s, 100, 103)
	require.Len(t, itemsOf(t, s, "run-0", ""), 18)
	split := must(s.Split(t.Context(), dlq.Filter{}))(t)
	require.Equal(t, []redrive.TopicCount{{Topic: "orders", Count: 23}, {Topic: "invoices", Count: 5}}, split)
	page := must(s.RunItems(t.Context(), "run-0", redrive.ItemFilter{After: list[9], Limit: 2}))(t)
	require.Equal(t, []int64{list[10], list[11]}, []int64{page[0].EntryID, page[1].EntryID})
}

// NextItems returns entries with the exact bytes of the body to send, within its limits.
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
	edited := must(s.Revise(t.Context(), driver.Revision{
		EntryID: list[3],
		Body:    &dlq.Body{Payload: []byte("edited")}, Actor: "ana", At: noon,
	}))(t)
	newRun(t, s, redrive.Spec{ID: "run-1"}, 100)
	items := must(s.NextItems(t.Context(), "run-1", 0, 10, 1<<20))(t)
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
		require.Len(t, must(s.NextItems(t.Context(), "run-1", c.after, c.limit, c.bytes))(t), want)
	}
}
