package dlqtest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// An operator sees three causes instead of a hundred messages.
func (w *world) TestGroups() {
	timeouts := w.putMany(0, 6)
	cpfs := w.putMany(10, 14, func(d *envelope.DeadLetter) { d.Err.Message = `invalid CPF "` + d.Message.UUID + `"` })
	ages := w.putMany(20, 21, dies("employee is 15, minimum 16"))
	w.mustChange(driver.Change{Action: driver.ActionResolve, IDs: timeouts[:1]})
	w.act(driver.ActionDiscard, noon, timeouts[1:4]...)

	groups := must(w.Groups(w.Context(), dlq.GroupQuery{}))(w)
	require.Len(w, groups, 3)
	require.Equal(w, driver.Group{
		Fingerprint: dlq.Fingerprint("charge", "*main.TimeoutError", "504", "payment 1: timeout after 2ms"),
		Cause:       "payment ?: timeout after ?", Sample: groups[0].Sample,
		ErrorClass: "*main.TimeoutError", Handler: "charge",
		Counts:    driver.Counts{Pending: 2, Resolved: 1, Discarded: 3},
		FirstSeen: noon, LastSeen: noon.Add(5 * time.Second), LastEntry: timeouts[5],
	}, groups[0])
	require.Contains(w, groups[0].Sample, "timeout after")
	require.Equal(w, []int64{cpfs[3], ages[0]}, []int64{groups[1].LastEntry, groups[2].LastEntry})

	pending := must(w.Groups(w.Context(), dlq.GroupQuery{Status: dlq.Pending, Limit: 2}))(w)
	require.Equal(w, []int64{4, 2}, []int64{pending[0].Counts.Pending, pending[1].Counts.Pending})
	cpf := must(w.Groups(w.Context(), dlq.GroupQuery{
		CauseText: "cpf", Handler: "charge", ErrorClass: "*main.TimeoutError",
	}))(w)
	require.Equal(w, groups[1:2], cpf)
	require.Len(w, w.all(dlq.Filter{Fingerprint: cpf[0].Fingerprint}), 4)
	for _, q := range []dlq.GroupQuery{{Limit: -1}, {Limit: wire.MaxGroups + 1}, {Status: "x; DROP TABLE"}} {
		fails(w.Groups(w.Context(), q))(w, dlq.ErrInvalid)
	}
}

// The group of letters stored in one call shows the newest of them, in whatever order they were given, and an older
// letter that is stored later does not replace it.
func (w *world) TestGroupNewest() {
	receipts := w.put(letter(1, at(1, "age 11")), letter(2, at(3, "age 13")), letter(3, at(9, "age 19")),
		letter(4, at(2, "age 12")), letter(5, at(8, "age 18")))
	groups := must(w.Groups(w.Context(), dlq.GroupQuery{}))(w)
	require.Len(w, groups, 1)
	require.Equal(w, []any{"age 19", receipts[2].ID}, []any{groups[0].Sample, groups[0].LastEntry})
	w.put(letter(6, at(4, "age 14")))
	groups = must(w.Groups(w.Context(), dlq.GroupQuery{}))(w)
	require.Equal(w, int64(6), groups[0].Counts.Pending)
	require.Equal(w, []time.Time{noon.Add(time.Hour), noon.Add(9 * time.Hour)},
		[]time.Time{groups[0].FirstSeen, groups[0].LastSeen})

	w.put(letter(7, at(7, "late")), letter(8, at(8, "later")), letter(9, at(8, "later")))
	groups = must(w.Groups(w.Context(), dlq.GroupQuery{SeenSince: noon.Add(8 * time.Hour)}))(w)
	require.Len(w, groups, 2, "a cause with no later deaths is left out")
	require.Equal(w, []int64{2, 6}, []int64{groups[0].Counts.Pending, groups[1].Counts.Pending}, "the newest cause first")
}

// at moves a death by hours and gives it another error.
func at(hours int, text string) func(*envelope.DeadLetter) {
	return func(d *envelope.DeadLetter) { d.At, d.Err.Message = noon.Add(time.Duration(hours)*time.Hour), text }
}

// A cause is as old as the oldest of its deaths, in whatever order they are stored, for example from an adopted spool
// or an import. An older entry that later dies of it does not make it older, nor does what happens to that entry then.
func (w *world) TestGroupFirst() {
	firstSeen := func(pending int64) time.Time {
		groups := must(w.Groups(w.Context(), dlq.GroupQuery{CauseText: "age"}))(w)
		require.Len(w, groups, 1)
		require.Equal(w, pending, groups[0].Counts.Pending)
		require.Equal(w, noon.Add(9*time.Hour), groups[0].LastSeen)
		return groups[0].FirstSeen
	}
	w.put(letter(1, at(9, "age 19")))
	require.Equal(w, noon.Add(9*time.Hour), firstSeen(1))
	w.put(letter(2, at(6, "age 16")))
	require.Equal(w, noon.Add(6*time.Hour), firstSeen(2), "one letter")
	w.put(letter(3, at(4, "age 14")), letter(4, at(3, "age 13")), letter(5, at(8, "age 18")))
	require.Equal(w, noon.Add(3*time.Hour), firstSeen(5), "letters of one call")
	seen := letter(4, at(3, "age 13")) // a redelivery among new letters
	w.put(seen, letter(6, at(2, "age 12")), letter(7, at(5, "age 15")))
	require.Equal(w, noon.Add(2*time.Hour), firstSeen(7), "letters, some of them known")

	old := w.put(letter(8, at(-5, "another cause")))[0].ID
	w.put(redriven(w.claim(old, noon.Add(6*time.Hour)), noon.Add(7*time.Hour), dies("age 17")))
	require.Equal(w, noon.Add(2*time.Hour), firstSeen(8), "it had died of another cause before")
	w.act(driver.ActionDiscard, noon.Add(10*time.Hour), old)
	require.Equal(w, noon.Add(2*time.Hour), firstSeen(7))
	require.NoError(w, w.Recount(w.Context()))
	require.Equal(w, noon.Add(2*time.Hour), firstSeen(7))
}

// earlier moves a death three hours back.
func earlier(d *envelope.DeadLetter) { d.At = d.At.Add(-3 * time.Hour) }

// The counts and curves come from the stored statistics.
func (w *world) TestStats() {
	empty := must(w.Stats(w.Context(), dlq.StatsQuery{}))(w)
	require.Zero(w, empty.Counts.Total())
	require.Zero(w, empty.MeanResolution)
	require.True(w, empty.OldestPending.IsZero())

	orders := w.putMany(0, 3)
	w.putMany(3, 5, topic("invoices"), earlier)
	w.putMany(5, 6, diedAt(noon.Add(-10*24*time.Hour)))
	w.act(driver.ActionResolve, noon.Add(time.Hour), orders[0])
	w.act(driver.ActionResolve, noon.Add(time.Second+3*time.Hour), orders[1])
	w.mustChange(driver.Change{Action: driver.ActionRedrive, IDs: orders[2:3]})

	stats := must(w.Stats(w.Context(), dlq.StatsQuery{Now: noon.Add(time.Hour)}))(w)
	require.Equal(w, driver.Counts{Pending: 3, Retrying: 1, Resolved: 2}, stats.Counts)
	require.Equal(w, 2*time.Hour, stats.MeanResolution.Duration())
	require.Equal(w, noon.Add(-10*24*time.Hour), stats.OldestPending)
	require.Equal(w, []wire.HourCount{
		{Hour: noon.Add(-3 * time.Hour).Truncate(time.Hour), Count: 2},
		{Hour: noon.Truncate(time.Hour), Count: 3},
		{Hour: noon.Add(time.Hour).Truncate(time.Hour), Closed: 1},
	}, stats.Hourly)
	require.Equal(w, []wire.NamedCounts{
		{Name: "orders", Counts: driver.Counts{Pending: 1, Retrying: 1, Resolved: 2}},
		{Name: "invoices", Counts: driver.Counts{Pending: 2}},
	}, stats.ByTopic)
	require.Equal(w, stats.ByTopic, stats.ByType, "the event type defaults to the topic")
	require.Len(w, stats.TopCauses, 1)
	require.Equal(w, int64(3), stats.TopCauses[0].Counts.Pending)

	month := dlq.StatsQuery{Now: noon.Add(time.Hour), Since: noon.Add(-30 * 24 * time.Hour)}
	require.Len(w, must(w.Stats(w.Context(), month))(w).Hourly, 4)
}

// Each cause has a curve of deaths and of closed entries, by hour.
func (w *world) TestTrend() {
	hour := noon.Truncate(time.Hour)
	timeouts := w.putMany(0, 4)
	w.putMany(4, 6, earlier)
	w.putMany(10, 13, dies("employee is 15, minimum 16"))
	w.act(driver.ActionResolve, noon.Add(time.Hour), timeouts[:2]...)
	w.act(driver.ActionDiscard, noon.Add(time.Hour), timeouts[2])
	w.act(driver.ActionRestore, noon.Add(2*time.Hour), timeouts[1])

	plain := must(w.Groups(w.Context(), dlq.GroupQuery{}))(w)
	require.Len(w, plain, 2)
	require.Nil(w, plain[0].Trend)

	groups := must(w.Groups(w.Context(), dlq.GroupQuery{TrendSince: noon.Add(-24 * time.Hour)}))(w)
	require.Equal(w, []wire.HourCount{
		{Hour: hour.Add(-3 * time.Hour), Count: 2}, {Hour: hour, Count: 4}, {Hour: hour.Add(time.Hour), Closed: 2},
	}, groups[0].Trend, "the restored one is not closed")
	require.Equal(w, []wire.HourCount{{Hour: hour, Count: 3}}, groups[1].Trend)

	one := must(w.Groups(w.Context(), dlq.GroupQuery{Fingerprint: groups[1].Fingerprint, TrendSince: noon}))(w)
	require.Equal(w, groups[1:], one)

	stats := must(w.Stats(w.Context(), dlq.StatsQuery{Now: noon.Add(2 * time.Hour)}))(w)
	require.Equal(w, []wire.HourCount{
		{Hour: hour.Add(-3 * time.Hour), Count: 2}, {Hour: hour, Count: 7}, {Hour: hour.Add(time.Hour), Closed: 2},
	}, stats.Hourly)
}

// The last hour is divided into spans without gaps, with its deaths, including those after a redrive, and its closed
// entries.
func (w *world) TestRecent() {
	now := noon.Add(3 * time.Minute) // the last span has not ended
	died := func(ago time.Duration) func(*envelope.DeadLetter) { return diedAt(now.Add(-ago)) }
	w.put(letter(1, died(2*time.Hour)), letter(2, died(50*time.Minute)))
	list := w.putMany(3, 6, died(4*time.Minute))
	w.act(driver.ActionRedrive, now.Add(-2*time.Minute), list[0])
	w.put(redriven(w.get(list[0]), now.Add(-30*time.Second)))
	w.act(driver.ActionDiscard, now.Add(-3*time.Minute), list[1:]...)

	require.Nil(w, must(w.Stats(w.Context(), dlq.StatsQuery{Now: now}))(w).Recent)
	stats := must(w.Stats(w.Context(), dlq.StatsQuery{Now: now, Recent: true}))(w)
	want := make([]wire.SpanCount, 12)
	for i := range want {
		want[i].From = now.Truncate(5 * time.Minute).Add(time.Duration(i-11) * 5 * time.Minute)
	}
	want[1].Count, want[10].Count, want[11].Count, want[10].Closed = 1, 3, 1, 2
	want[11].DiedAgain = 1
	require.Equal(w, want, stats.Recent)
}

// The statistics, which every change updates, are equal to a recount of the entries.
func (w *world) TestStatsEqualRecount() {
	list := w.putMany(0, 30, func(d *envelope.DeadLetter) {
		n := d.At.Second()
		d.At = d.At.Add(time.Duration(n) * 20 * time.Minute)
		d.Origin.Topic = []string{"orders", "invoices", "mails"}[n%3]
		d.Handler = []string{"charge", "send"}[n%2]
	})
	w.put(letter(100), letter(101))
	closed := noon.Add(100 * time.Hour)
	for i, id := range list {
		switch i % 5 {
		case 0:
			w.act(driver.ActionResolve, closed.Add(time.Duration(i)*time.Hour), id)
		case 1:
			w.act(driver.ActionDiscard, closed, id)
			if i%2 == 0 {
				w.act(driver.ActionRestore, closed, id)
			}
		case 2:
			died := redriven(w.claim(id, closed), closed.Add(time.Minute), dies("another cause"))
			require.Equal(w, driver.DiedAgain, w.put(died)[0].Result)
			w.put(died)
		case 3:
			w.claim(id, closed)
		}
	}
	require.Equal(w, 2, w.purge(closed.Add(6*time.Hour), closed))

	read := func() (driver.Stats, []driver.Group) {
		return must(w.Stats(w.Context(), dlq.StatsQuery{Since: noon, Now: closed.Add(100 * time.Hour)}))(w),
			must(w.Groups(w.Context(), dlq.GroupQuery{Limit: 100, TrendSince: noon}))(w)
	}
	keptStats, keptGroups := read()
	require.Equal(w, int64(30), keptStats.Counts.Total())
	require.NoError(w, w.Recount(w.Context()))
	countedStats, countedGroups := read()
	require.Equal(w, countedStats, keptStats)
	require.Equal(w, countedGroups, keptGroups)
	var listed driver.Counts
	for _, e := range w.all(dlq.Filter{}) {
		listed.Add(e.Status, 1)
	}
	require.Equal(w, listed, keptStats.Counts)
}

// requireCounts compares the stored counts of entries with the expected ones and with a recount.
func (w *world) requireCounts(want driver.Counts) {
	w.Helper()
	for range 2 {
		require.Equal(w, want, must(w.Stats(w.Context(), dlq.StatsQuery{}))(w).Counts)
		require.NoError(w, w.Recount(w.Context()))
	}
}
