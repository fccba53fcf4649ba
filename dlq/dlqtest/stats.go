package dlqtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// An operator sees three causes instead of a hundred messages.
func testGroups(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	timeouts := putMany(t, s, 0, 6)
	cpfs := putMany(t, s, 10, 14, func(d *envelope.DeadLetter) {
		d.Err.Message = "invalid CPF \"" + d.Message.UUID + "\""
	})
	ages := putMany(t, s, 20, 21, func(d *envelope.DeadLetter) { d.Err.Message = "employee is 15, minimum 16" })
	mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: timeouts[:1]})
	must(s.Change(t.Context(), driver.Change{
		Action: driver.ActionDiscard, IDs: timeouts[1:4], Actor: "ana", At: noon,
	}))(t)

	groups := must(s.Groups(t.Context(), dlq.GroupQuery{}))(t)
	require.Len(t, groups, 3)
	require.Equal(t, driver.Group{
		Fingerprint: dlq.Fingerprint("charge", "*main.TimeoutError", "504", "payment 1: timeout after 2ms"),
		Cause:       "payment ?: timeout after ?", Sample: groups[0].Sample, ErrorClass: "*main.TimeoutError",
		Handler:   "charge",
		Counts:    driver.Counts{Pending: 2, Resolved: 1, Discarded: 3},
		FirstSeen: noon, LastSeen: noon.Add(5 * time.Second), LastEntry: timeouts[5],
	}, groups[0])
	require.Contains(t, groups[0].Sample, "timeout after")
	require.Equal(t, []int64{cpfs[3], ages[0]}, []int64{groups[1].LastEntry, groups[2].LastEntry})

	pending := must(s.Groups(t.Context(), dlq.GroupQuery{Status: dlq.Pending, Limit: 2}))(t)
	require.Equal(t, []int64{4, 2}, []int64{pending[0].Counts.Pending, pending[1].Counts.Pending})
	cpf := must(s.Groups(t.Context(), dlq.GroupQuery{
		CauseText: "cpf", Handler: "charge", ErrorClass: "*main.TimeoutError",
	}))(t)
	require.Equal(t, groups[1:2], cpf)
	require.Len(t, all(t, s, dlq.Filter{Fingerprint: cpf[0].Fingerprint}), 4)
	for _, q := range []dlq.GroupQuery{{Limit: -1}, {Limit: driver.MaxPage + 1}, {Status: "x; DROP TABLE"}} {
		_, err := s.Groups(t.Context(), q)
		require.ErrorIs(t, err, dlq.ErrInvalid)
	}
}

// The group of letters stored in one call shows the newest of them, in whatever order they were given, and an older
// letter that is stored later does not replace it.
func testGroupNewest(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	at := func(hours int, text string) func(*envelope.DeadLetter) {
		return func(d *envelope.DeadLetter) { d.At, d.Err.Message = noon.Add(time.Duration(hours)*time.Hour), text }
	}
	letters := []*dlq.Entry{
		letter(1, at(1, "age 11")), letter(2, at(3, "age 13")), letter(3, at(9, "age 19")), letter(4, at(2, "age 12")),
		letter(5, at(8, "age 18")),
	}
	receipts := put(t, s, letters...)
	groups := must(s.Groups(t.Context(), dlq.GroupQuery{}))(t)
	require.Len(t, groups, 1)
	require.Equal(t, []any{"age 19", receipts[2].ID}, []any{groups[0].Sample, groups[0].LastEntry})
	put(t, s, letter(6, at(4, "age 14")))
	groups = must(s.Groups(t.Context(), dlq.GroupQuery{}))(t)
	require.Equal(t, int64(6), groups[0].Counts.Pending)
	require.Equal(t, []time.Time{noon.Add(time.Hour), noon.Add(9 * time.Hour)},
		[]time.Time{groups[0].FirstSeen, groups[0].LastSeen})

	put(t, s, letter(7, at(7, "late")), letter(8, at(8, "later")), letter(9, at(8, "later")))
	groups = must(s.Groups(t.Context(), dlq.GroupQuery{SeenSince: noon.Add(8 * time.Hour)}))(t)
	require.Len(t, groups, 2, "a cause with no later deaths is left out")
	require.Equal(t, []int64{2, 6}, []int64{groups[0].Counts.Pending, groups[1].Counts.Pending},
		"the newest cause first")
}

// A cause is as old as the oldest of its deaths, in whatever order they are stored, for example from an adopted spool
// or an import. An older entry that later dies of it does not make it older, nor does what happens to that entry then.
func testGroupFirst(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	at := func(hours int, text string) func(*envelope.DeadLetter) {
		return func(d *envelope.DeadLetter) { d.At, d.Err.Message = noon.Add(time.Duration(hours)*time.Hour), text }
	}
	firstSeen := func(pending int64) time.Time {
		groups := must(s.Groups(t.Context(), dlq.GroupQuery{CauseText: "age"}))(t)
		require.Len(t, groups, 1)
		require.Equal(t, pending, groups[0].Counts.Pending)
		require.Equal(t, noon.Add(9*time.Hour), groups[0].LastSeen)
		return groups[0].FirstSeen
	}
	put(t, s, letter(1, at(9, "age 19")))
	require.Equal(t, noon.Add(9*time.Hour), firstSeen(1))
	put(t, s, letter(2, at(6, "age 16")))
	require.Equal(t, noon.Add(6*time.Hour), firstSeen(2), "one letter")
	put(t, s, letter(3, at(4, "age 14")), letter(4, at(3, "age 13")), letter(5, at(8, "age 18")))
	require.Equal(t, noon.Add(3*time.Hour), firstSeen(5), "letters of one call")
	seen := letter(4, at(3, "age 13")) // a redelivery among new letters
	put(t, s, seen, letter(6, at(2, "age 12")), letter(7, at(5, "age 15")))
	require.Equal(t, noon.Add(2*time.Hour), firstSeen(7), "letters, some of them known")

	old := put(t, s, letter(8, at(-5, "another cause")))[0].ID
	put(t, s, redriven(claim(t, s, old, noon.Add(6*time.Hour)), noon.Add(7*time.Hour),
		func(d *envelope.DeadLetter) { d.Err.Message = "age 17" }))
	require.Equal(t, noon.Add(2*time.Hour), firstSeen(8), "it had died of another cause before")
	mustChange(t, s, driver.Change{Action: driver.ActionDiscard, IDs: []int64{old}, At: noon.Add(10 * time.Hour)})
	require.Equal(t, noon.Add(2*time.Hour), firstSeen(7))
	require.NoError(t, s.Recount(t.Context()))
	require.Equal(t, noon.Add(2*time.Hour), firstSeen(7))
}

// The counts and curves come from the stored statistics.
func testStats(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	empty := must(s.Stats(t.Context(), dlq.StatsQuery{}))(t)
	require.Zero(t, empty.Counts.Total())
	require.Zero(t, empty.MeanResolution)
	require.True(t, empty.OldestPending.IsZero())

	orders := putMany(t, s, 0, 3)
	putMany(t, s, 3, 5, func(d *envelope.DeadLetter) { d.Origin.Topic = "invoices"; d.At = d.At.Add(-3 * time.Hour) })
	putMany(t, s, 5, 6, func(d *envelope.DeadLetter) { d.At = noon.Add(-10 * 24 * time.Hour) })
	mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: orders[:1], At: noon.Add(time.Hour)})
	mustChange(t, s, driver.Change{
		Action: driver.ActionResolve, IDs: orders[1:2], At: noon.Add(time.Second + 3*time.Hour),
	})
	mustChange(t, s, driver.Change{Action: driver.ActionRedrive, IDs: orders[2:3]})

	stats := must(s.Stats(t.Context(), dlq.StatsQuery{Now: noon.Add(time.Hour)}))(t)
	require.Equal(t, driver.Counts{Pending: 3, Retrying: 1, Resolved: 2}, stats.Counts)
	require.Equal(t, 2*time.Hour, stats.MeanResolution.Duration())
	require.Equal(t, noon.Add(-10*24*time.Hour), stats.OldestPending)
	require.Equal(t, []driver.HourCount{
		{Hour: noon.Add(-3 * time.Hour).Truncate(time.Hour), Count: 2},
		{Hour: noon.Truncate(time.Hour), Count: 3},
		{Hour: noon.Add(time.Hour).Truncate(time.Hour), Closed: 1},
	}, stats.Hourly)
	require.Equal(t, []driver.NamedCounts{
		{Name: "orders", Counts: driver.Counts{Pending: 1, Retrying: 1, Resolved: 2}},
		{Name: "invoices", Counts: driver.Counts{Pending: 2}},
	}, stats.ByTopic)
	require.Equal(t, stats.ByTopic, stats.ByType, "the event type defaults to the topic")
	require.Len(t, stats.TopCauses, 1)
	require.Equal(t, int64(3), stats.TopCauses[0].Counts.Pending)

	all, err := s.Stats(t.Context(), dlq.StatsQuery{Now: noon.Add(time.Hour), Since: noon.Add(-30 * 24 * time.Hour)})
	require.NoError(t, err)
	require.Len(t, all.Hourly, 4)
}

// Each cause has a curve of deaths and of closed entries, by hour.
func testTrend(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	hour := noon.Truncate(time.Hour)
	timeouts := putMany(t, s, 0, 4)
	putMany(t, s, 4, 6, func(d *envelope.DeadLetter) { d.At = d.At.Add(-3 * time.Hour) })
	putMany(t, s, 10, 13, func(d *envelope.DeadLetter) { d.Err.Message = "employee is 15, minimum 16" })
	mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: timeouts[:2], At: noon.Add(time.Hour)})
	mustChange(t, s, driver.Change{Action: driver.ActionDiscard, IDs: timeouts[2:3], At: noon.Add(time.Hour)})
	mustChange(t, s, driver.Change{Action: driver.ActionRestore, IDs: timeouts[1:2], At: noon.Add(2 * time.Hour)})

	plain := must(s.Groups(t.Context(), dlq.GroupQuery{}))(t)
	require.Len(t, plain, 2)
	require.Nil(t, plain[0].Trend)

	groups := must(s.Groups(t.Context(), dlq.GroupQuery{TrendSince: noon.Add(-24 * time.Hour)}))(t)
	require.Equal(t, []driver.HourCount{
		{Hour: hour.Add(-3 * time.Hour), Count: 2},
		{Hour: hour, Count: 4},
		{Hour: hour.Add(time.Hour), Closed: 2},
	},
		groups[0].Trend, "the restored one is not closed")
	require.Equal(t, []driver.HourCount{{Hour: hour, Count: 3}}, groups[1].Trend)

	one := must(s.Groups(t.Context(), dlq.GroupQuery{Fingerprint: groups[1].Fingerprint, TrendSince: noon}))(t)
	require.Equal(t, groups[1:], one)

	stats := must(s.Stats(t.Context(), dlq.StatsQuery{Now: noon.Add(2 * time.Hour)}))(t)
	require.Equal(t, []driver.HourCount{
		{Hour: hour.Add(-3 * time.Hour), Count: 2}, {Hour: hour, Count: 7}, {Hour: hour.Add(time.Hour), Closed: 2},
	}, stats.Hourly)
}

// The last hour is divided into spans without gaps, with its deaths, including those after a redrive, and its closed
// entries.
func testRecent(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	now := noon.Add(3 * time.Minute) // the last span has not ended
	died := func(ago time.Duration) func(*envelope.DeadLetter) {
		return func(d *envelope.DeadLetter) { d.At = now.Add(-ago) }
	}
	put(t, s, letter(1, died(2*time.Hour)), letter(2, died(50*time.Minute)))
	list := putMany(t, s, 3, 6, died(4*time.Minute))
	mustChange(t, s, driver.Change{Action: driver.ActionRedrive, IDs: list[:1], At: now.Add(-2 * time.Minute)})
	put(t, s, redriven(get(t, s, list[0]), now.Add(-30*time.Second)))
	mustChange(t, s, driver.Change{Action: driver.ActionDiscard, IDs: list[1:], At: now.Add(-3 * time.Minute)})

	require.Nil(t, must(s.Stats(t.Context(), dlq.StatsQuery{Now: now}))(t).Recent)
	stats := must(s.Stats(t.Context(), dlq.StatsQuery{Now: now, Recent: true}))(t)
	want := make([]driver.SpanCount, 12)
	for i := range want {
		want[i].From = now.Truncate(5 * time.Minute).Add(time.Duration(i-11) * 5 * time.Minute)
	}
	want[1].Count, want[10].Count, want[11].Count, want[10].Closed = 1, 3, 1, 2
	want[11].DiedAgain = 1
	require.Equal(t, want, stats.Recent)
}

// The statistics, which every change updates, are equal to a recount of the entries.
func testRecount(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	list := putMany(t, s, 0, 30, func(d *envelope.DeadLetter) {
		n := d.At.Second()
		d.At = d.At.Add(time.Duration(n) * 20 * time.Minute)
		d.Origin.Topic = []string{"orders", "invoices", "mails"}[n%3]
		d.Handler = []string{"charge", "send"}[n%2]
	})
	put(t, s, letter(100), letter(101))
	closed := noon.Add(100 * time.Hour)
	for i, id := range list {
		switch i % 5 {
		case 0:
			mustChange(t, s, driver.Change{
				Action: driver.ActionResolve, IDs: []int64{id}, At: closed.Add(time.Duration(i) * time.Hour),
			})
		case 1:
			mustChange(t, s, driver.Change{Action: driver.ActionDiscard, IDs: []int64{id}, At: closed})
			if i%2 == 0 {
				mustChange(t, s, driver.Change{Action: driver.ActionRestore, IDs: []int64{id}, At: closed})
			}
		case 2:
			sent := claim(t, s, id, closed)
			died := redriven(sent, closed.Add(time.Minute), func(d *envelope.DeadLetter) { d.Err.Message = "another cause" })
			require.Equal(t, driver.DiedAgain, put(t, s, died)[0].Result)
			put(t, s, died)
		case 3:
			claim(t, s, id, closed)
		}
	}
	purged, err := s.Purge(t.Context(), dlq.Purge{ClosedBefore: closed.Add(6 * time.Hour), Actor: "cron", At: closed})
	require.NoError(t, err)
	require.Equal(t, 2, purged)

	read := func() (driver.Stats, []driver.Group) {
		stats := must(s.Stats(t.Context(), dlq.StatsQuery{Since: noon, Now: closed.Add(100 * time.Hour)}))(t)
		groups := must(s.Groups(t.Context(), dlq.GroupQuery{Limit: 100, TrendSince: noon}))(t)
		return stats, groups
	}
	keptStats, keptGroups := read()
	require.Equal(t, int64(30), keptStats.Counts.Total())
	require.NoError(t, s.Recount(t.Context()))
	countedStats, countedGroups := read()
	require.Equal(t, countedStats, keptStats)
	require.Equal(t, countedGroups, keptGroups)
	var listed driver.Counts
	for _, e := range all(t, s, dlq.Filter{}) {
		listed.Add(e.Status, 1)
	}
	require.Equal(t, listed, keptStats.Counts)
}

// requireCounts compares the stored counts of entries with the expected ones and with a recount.
func requireCounts(t *testing.T, s dlq.Store, want driver.Counts) {
	t.Helper()
	for range 2 {
		require.Equal(t, want, must(s.Stats(t.Context(), dlq.StatsQuery{}))(t).Counts)
		require.NoError(t, s.Recount(t.Context()))
	}
}
