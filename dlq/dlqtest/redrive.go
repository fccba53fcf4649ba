package dlqtest

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// claim claims an entry for a redrive, records it as published, and returns it with its body.
func claim(t *testing.T, s dlq.Store, id int64, at time.Time) *dlq.Entry {
	t.Helper()
	mustChange(t, s, driver.Change{Action: driver.ActionRedrive, IDs: []int64{id}, At: at})
	mustChange(t, s, driver.Change{Action: driver.ActionPublished, IDs: []int64{id}, At: at, Lease: time.Hour})
	return get(t, s, id)
}

// The success of a redriven message closes its entry automatically.
func testSuccess(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	sent := claim(t, s, id, noon.Add(time.Hour))
	succeeded := driver.Change{
		Action: driver.ActionSucceed, IDs: []int64{id}, Actor: "redrive", At: noon.Add(2 * time.Hour),
		Reports: []driver.Report{{
			MessageID: sent.EventID, Topic: sent.Origin.Topic, Consumer: sent.Origin.Consumer, Number: 1,
		}},
	}
	for name, edit := range map[string]func(*driver.Report){
		"another message":  func(r *driver.Report) { r.MessageID = "of another store" },
		"another topic":    func(r *driver.Report) { r.Topic = "invoices" },
		"another consumer": func(r *driver.Report) { r.Consumer = "mail" },
		"another number":   func(r *driver.Report) { r.Number = 7 },
	} {
		wrong := succeeded
		wrong.Reports = slices.Clone(succeeded.Reports)
		edit(&wrong.Reports[0])
		_, err := change(t, s, wrong)
		require.ErrorIs(t, err, dlq.ErrInvalid, name)
		require.Equal(t, dlq.Retrying, get(t, s, id).Status, name)
	}
	fresh := put(t, s, letter(2))[0].ID
	forged := succeeded
	forged.IDs, forged.Reports = []int64{fresh}, []driver.Report{{MessageID: "message-2", Number: 1}}
	_, err := change(t, s, forged)
	require.ErrorIs(t, err, dlq.ErrInvalid, "it was never redriven")
	require.Equal(t, dlq.Pending, get(t, s, fresh).Status)

	mustChange(t, s, succeeded)
	got := get(t, s, id)
	require.Equal(t, dlq.Resolved, got.Status)
	require.Equal(t, "redrive", got.ResolvedBy)
	require.Equal(t, noon.Add(2*time.Hour), got.ResolvedAt)
	require.Equal(t, 1, got.RedriveCount)

	// Reporting it twice, or again after an operator restored the entry, changes nothing.
	_, err = change(t, s, succeeded)
	require.ErrorIs(t, err, dlq.ErrConflict)
	mustChange(t, s, driver.Change{Action: driver.ActionRestore, IDs: []int64{id}, At: noon.Add(3 * time.Hour)})
	_, err = change(t, s, succeeded)
	require.ErrorIs(t, err, dlq.ErrConflict)
	require.Equal(t, dlq.Pending, get(t, s, id).Status)
}

// A redriven message that dies again is the same entry, PENDING again and with one more redrive, until its redrives are
// exhausted: then it is PARKED for a person.
func testSecondDeath(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	for round := 1; round <= 3; round++ {
		at := noon.Add(time.Duration(round) * time.Hour)
		sent := claim(t, s, id, at)
		died := redriven(sent, at.Add(time.Minute), func(d *envelope.DeadLetter) {
			d.Err.Message = "account still closed"
			d.Reason, d.Class, d.Attempts = envelope.ReasonPermanent, "*main.Closed", round
		})
		require.Equal(t, driver.Receipt{ID: id, Result: driver.DiedAgain}, put(t, s, died)[0])
		got := get(t, s, id)
		require.Equal(t, []dlq.Status{dlq.Pending, dlq.Pending, dlq.Parked}[round-1], got.Status)
		require.Equal(t, round, got.RedriveCount)
		require.Equal(t, round, got.DeathRedrive)
		require.Equal(t, "account still closed", got.ErrorMessage)
		require.Equal(t, died.Fingerprint, got.Fingerprint)
		require.Equal(t, envelope.ReasonPermanent, got.Reason)
		require.Equal(t, noon.Add(time.Second), got.CreatedAt)
		require.Equal(t, at.Add(time.Minute), got.DiedAt)
		require.Equal(t, "consumer billing", got.ChangedBy)

		// Reporting the same death again changes no status, even after the next redrive has begun.
		require.Equal(t, driver.Seen, put(t, s, died)[0].Result)
		again := claim(t, s, id, at.Add(2*time.Minute))
		require.Equal(t, driver.Seen, put(t, s, died)[0].Result)
		require.Equal(t, dlq.Retrying, get(t, s, id).Status)
		mustChange(t, s, driver.Change{
			Action: driver.ActionRelease, IDs: []int64{id}, Version: again.Version, At: at.Add(3 * time.Minute),
		})
	}
	require.Len(t, all(t, s, dlq.Filter{}), 1)
}

// A late death counts as the latest of its cause even if it does not change the entry's status, because an operator had
// stopped waiting for it.
func testLateDeath(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	for round, at := range []time.Time{noon.Add(time.Hour), noon.Add(2 * time.Hour)} {
		sent := claim(t, s, id, at)
		mustChange(t, s, driver.Change{
			Action: driver.ActionReleaseByHand, IDs: []int64{id},
			Note: "the consumer is gone", At: at.Add(time.Minute),
		})
		late := redriven(sent, at.Add(5*time.Minute), func(d *envelope.DeadLetter) { d.Err.Message = "account still closed" })
		require.Equal(t, driver.Receipt{ID: id, Result: driver.DiedAgain}, put(t, s, late)[0])
		require.Equal(t, dlq.Pending, get(t, s, id).Status)
		groups := must(s.Groups(t.Context(), dlq.GroupQuery{Fingerprint: late.Fingerprint}))(t)
		require.Equal(t, at.Add(5*time.Minute), groups[0].LastSeen, "round %d", round)
	}
}

// Each death after a redrive is counted once, in its hour and for its cause, and stays counted when the entry dies
// again of another cause, when the death is reported again, when the entry is purged, and when the statistics are
// recomputed.
func testDeathsByHour(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	hour := noon.Truncate(time.Hour)
	want := []driver.HourCount{{Hour: hour, Count: 1}}
	for round, text := range []string{"account still closed", "account still closed", "no stock"} {
		at := noon.Add(time.Duration(round) * time.Hour)
		died := redriven(claim(t, s, id, at), at.Add(time.Minute), func(d *envelope.DeadLetter) { d.Err.Message = text })
		require.Equal(t, driver.DiedAgain, put(t, s, died)[0].Result)
		require.Equal(t, driver.Seen, put(t, s, died)[0].Result)
		if round > 0 {
			want = append(want, driver.HourCount{Hour: hour.Add(time.Duration(round) * time.Hour)})
		}
		want[round].DiedAgain = 1
	}
	check := func(want []driver.HourCount) {
		t.Helper()
		for range 2 {
			stats := must(s.Stats(t.Context(), dlq.StatsQuery{Since: noon, Now: noon.Add(9 * time.Hour)}))(t)
			require.Equal(t, want, stats.Hourly)
			require.NoError(t, s.Recount(t.Context()))
		}
	}
	check(want)
	groups := must(s.Groups(t.Context(), dlq.GroupQuery{CauseText: "no stock", TrendSince: noon}))(t)
	require.Len(t, groups, 1)
	require.Len(t, groups[0].Trend, 2, "the hour of the first death, and that of the second")
	require.Equal(t, want[2], groups[0].Trend[1], "the other deaths have another cause")

	mustChange(t, s, driver.Change{Action: driver.ActionResolve, IDs: []int64{id}, At: noon.Add(3 * time.Hour)})
	must(s.Purge(t.Context(), dlq.Purge{
		ClosedBefore: noon.Add(4 * time.Hour), Actor: "cron", At: noon.Add(4 * time.Hour),
	}))(t)
	want[0].Count = 0
	check(want)
}

// Without a position, the same message may be sent again after its entry was closed; that death must not be lost.
func testResent(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	resend := func(at time.Time, position string) *dlq.Entry {
		return letter(1, func(d *envelope.DeadLetter) { d.At, d.Origin.Position = at, position })
	}
	for _, close := range []driver.Action{driver.ActionResolve, driver.ActionDiscard} {
		position := string(close)
		closed := noon.Add(time.Hour)
		with := put(t, s, resend(noon, position))[0].ID
		without := put(t, s, letter(1, func(d *envelope.DeadLetter) { d.Origin.Position, d.Handler = "", position }))[0].ID
		mustChange(t, s, driver.Change{Action: close, IDs: []int64{with}, At: closed})
		mustChange(t, s, driver.Change{Action: close, IDs: []int64{without}, At: closed})
		again := func(at time.Time) *dlq.Entry {
			return letter(1, func(d *envelope.DeadLetter) { d.At, d.Origin.Position, d.Handler = at, "", position })
		}
		require.Equal(t, driver.Seen, put(t, s, resend(closed.Add(time.Minute), position))[0].Result,
			"the same position is the same delivery")
		require.Equal(t, driver.Seen, put(t, s, again(closed.Add(-time.Minute)))[0].Result,
			"a death before the entry was closed is already known")
		require.Equal(t, driver.DiedAgain, put(t, s, again(closed.Add(time.Minute)))[0].Result)
		require.Equal(t, dlq.Pending, get(t, s, without).Status)
		require.True(t, get(t, s, without).ResolvedAt.IsZero())
	}
}

// A handler may copy the headers of a redriven message to the messages that it publishes; their deaths must not be
// attributed to that redrive.
func testCopiedHeaders(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	sent := claim(t, s, id, noon.Add(time.Hour))
	for name, edit := range map[string]func(*envelope.DeadLetter){
		"topic":    func(d *envelope.DeadLetter) { d.Origin.Topic = "invoices" },
		"consumer": func(d *envelope.DeadLetter) { d.Origin.Consumer = "mail" },
		"message":  func(d *envelope.DeadLetter) { d.Message.Metadata[envelope.KeyMessageID] = "another" },
		"redrive":  func(d *envelope.DeadLetter) { d.Message.Metadata[envelope.KeyRedriveCount] = "2147483647" },
		"no entry": func(d *envelope.DeadLetter) { d.Message.Metadata[envelope.KeyRedriveID] = "4711" },
	} {
		receipt := put(t, s, redriven(sent, noon.Add(2*time.Hour), edit))[0]
		require.Equal(t, driver.Stored, receipt.Result, name)
		require.NotEqual(t, id, receipt.ID)
	}
	require.Equal(t, dlq.Retrying, get(t, s, id).Status)
}

// If the body has changed in between, it is stored as a new revision in addition to the original.
func testChangedBody(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	sent := claim(t, s, id, noon.Add(time.Hour))
	changed := redriven(sent, noon.Add(2*time.Hour),
		func(d *envelope.DeadLetter) { d.Message.Payload = []byte("changed") })
	require.Equal(t, driver.DiedAgain, put(t, s, changed)[0].Result)
	got := get(t, s, id)
	require.Equal(t, 1, got.Revision)
	require.Equal(t, int64(len("changed")), got.Size)
	require.Equal(t, "changed", string(got.Body.Payload))
	require.Equal(t, `{"n":1}`, string(must(s.Body(t.Context(), id, 0))(t).Payload))
	_, err := s.Body(t.Context(), id, 2)
	require.ErrorIs(t, err, dlq.ErrNotFound)
}

// A redrive whose process died can be repeated once its lease has expired, and not before.
func testLease(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	id := put(t, s, letter(1))[0].ID
	at := noon.Add(time.Hour)
	redrive := driver.Change{Action: driver.ActionRedrive, IDs: []int64{id}, At: at, Lease: time.Minute, Actor: "who died"}
	claimed := mustChange(t, s, redrive)
	redrive.Actor = "ana"
	for _, action := range []driver.Action{driver.ActionRedrive, driver.ActionResolve, driver.ActionDiscard} {
		early := redrive
		early.Action, early.At = action, at.Add(time.Minute-time.Microsecond)
		_, err := change(t, s, early)
		require.ErrorContains(t, err, "who died")
	}
	redrive.At = at.Add(time.Minute)
	again := mustChange(t, s, redrive)
	require.Equal(t, 2, again.RedriveCount)
	// The first claimant, which was slow, can neither release nor extend it.
	for _, action := range []driver.Action{driver.ActionRelease, driver.ActionPublished} {
		_, err := change(t, s, driver.Change{
			Action: action, IDs: []int64{id}, Version: claimed.Version, At: at.Add(2 * time.Minute),
		})
		require.ErrorIs(t, err, dlq.ErrConflict)
	}
	require.Equal(t, dlq.Retrying, get(t, s, id).Status)
	// When two copies are in flight, the death of the first changes nothing once that of the second is recorded.
	first, second := *get(t, s, id), *get(t, s, id)
	first.RedriveCount = 1
	require.Equal(t, driver.DiedAgain, put(t, s, redriven(&second, at.Add(3*time.Minute)))[0].Result)
	require.Equal(t, driver.Seen, put(t, s, redriven(&first, at.Add(4*time.Minute)))[0].Result)
}

// An admin ends the wait for an outcome: the redrive still counts, and so does an outcome that arrives late.
func testManualRelease(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	for n, late := range []string{"success", "death"} {
		id := put(t, s, letter(n))[0].ID
		sent := claim(t, s, id, noon.Add(time.Hour))
		at := noon.Add(2 * time.Hour)
		_, err := s.Change(t.Context(), driver.Change{
			Action: driver.ActionReleaseByHand, IDs: []int64{id}, Actor: "ana", At: at,
		})
		require.ErrorIs(t, err, dlq.ErrInvalid, "it needs a note")
		mustChange(t, s, driver.Change{
			Action: driver.ActionReleaseByHand, IDs: []int64{id}, At: at, Actor: "ana", Note: "no reader",
		})
		got := get(t, s, id)
		require.Equal(t, []any{dlq.Pending, 1, true}, []any{got.Status, got.RedriveCount, got.LeaseUntil.IsZero()})
		if late == "success" {
			mustChange(t, s, driver.Change{
				Action: driver.ActionSucceed, IDs: []int64{id}, At: at.Add(time.Hour),
				Reports: []driver.Report{{MessageID: sent.EventID, Number: 1}},
			})
			require.Equal(t, dlq.Resolved, get(t, s, id).Status)
			continue
		}
		receipt := put(t, s, redriven(sent, at.Add(time.Hour)))[0]
		require.Equal(t, driver.Receipt{ID: id, Result: driver.DiedAgain}, receipt)
	}
}

// The audit log names the run of a success, a death and a release; a single redrive has none.
func testAuditOfRun(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	for n, run := range []string{"run-1", ""} {
		id := put(t, s, letter(n))[0].ID
		mustChange(t, s, driver.Change{Action: driver.ActionRedrive, IDs: []int64{id}, At: noon, Run: run})
		mustChange(t, s, driver.Change{
			Action: driver.ActionReleaseByHand, IDs: []int64{id}, At: noon.Add(time.Minute), Note: "no reader",
		})
		mustChange(t, s, driver.Change{Action: driver.ActionSucceed, IDs: []int64{id}, At: noon.Add(time.Hour)})
		records := recorded(t, s, dlq.AuditFilter{EntryID: id}, dlq.Page{})
		require.Len(t, records, 3)
		for _, record := range records {
			require.Equal(t, run, record.Run, string(record.Action))
		}
	}
}
