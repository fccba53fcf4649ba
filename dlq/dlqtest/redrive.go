package dlqtest

import (
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// claim claims an entry for a redrive, records it as published, and returns it with its body.
func (w *world) claim(id int64, at time.Time) *dlq.Entry {
	w.Helper()
	w.act(driver.ActionRedrive, at, id)
	w.mustChange(driver.Change{Action: driver.ActionPublished, IDs: []int64{id}, At: at, Lease: time.Hour})
	return w.get(id)
}

// succeeds records the success of a redriven message, as its consumer reports it.
func (w *world) succeeds(id int64, at time.Time, report ...driver.Report) {
	w.Helper()
	w.mustChange(driver.Change{Action: driver.ActionSucceed, IDs: []int64{id}, Actor: "redrive", At: at, Reports: report})
}

// releaseByHand ends the wait for an entry's outcome.
func (w *world) releaseByHand(id int64, at time.Time) {
	w.Helper()
	w.mustChange(driver.Change{Action: driver.ActionReleaseByHand, IDs: []int64{id}, Note: "no reader", At: at})
}

// The success of a redriven message closes its entry automatically.
func (w *world) TestSuccessClosesTheEntry() {
	id := w.put(letter(1))[0].ID
	sent := w.claim(id, noon.Add(time.Hour))
	report := driver.Report{MessageID: sent.EventID, Topic: sent.Origin.Topic, Consumer: sent.Origin.Consumer, Number: 1}
	succeeded := driver.Change{
		Action: driver.ActionSucceed, IDs: []int64{id}, Actor: "redrive", At: noon.Add(2 * time.Hour),
		Reports: []driver.Report{report},
	}
	for name, edit := range map[string]func(*driver.Report){
		"another message":  func(r *driver.Report) { r.MessageID = "of another store" },
		"another topic":    func(r *driver.Report) { r.Topic = "invoices" },
		"another consumer": func(r *driver.Report) { r.Consumer = "mail" },
		"another number":   func(r *driver.Report) { r.Number = 7 },
	} {
		wrong, r := succeeded, report
		edit(&r)
		wrong.Reports = []driver.Report{r}
		fails(w.change(wrong))(w, dlq.ErrInvalid, name)
		require.Equal(w, dlq.Retrying, w.get(id).Status, name)
	}
	fresh := w.put(letter(2))[0].ID
	forged := succeeded
	forged.IDs, forged.Reports = []int64{fresh}, []driver.Report{{MessageID: "message-2", Number: 1}}
	fails(w.change(forged))(w, dlq.ErrInvalid, "it was never redriven")
	require.Equal(w, dlq.Pending, w.get(fresh).Status)

	w.mustChange(succeeded)
	got := w.get(id)
	require.Equal(w, dlq.Resolved, got.Status)
	require.Equal(w, "redrive", got.ResolvedBy)
	require.Equal(w, noon.Add(2*time.Hour), got.ResolvedAt)
	require.Equal(w, 1, got.RedriveCount)

	// Reporting it twice, or again after an operator restored the entry, changes nothing.
	fails(w.change(succeeded))(w, dlq.ErrConflict)
	w.act(driver.ActionRestore, noon.Add(3*time.Hour), id)
	fails(w.change(succeeded))(w, dlq.ErrConflict)
	require.Equal(w, dlq.Pending, w.get(id).Status)
}

// A redriven message that dies again is the same entry, PENDING again and with one more redrive, until its redrives are
// exhausted: then it is PARKED for a person.
func (w *world) TestSecondDeathReopensTheEntry() {
	id := w.put(letter(1))[0].ID
	for round := 1; round <= 3; round++ {
		at := noon.Add(time.Duration(round) * time.Hour)
		died := redriven(w.claim(id, at), at.Add(time.Minute), func(d *envelope.DeadLetter) {
			d.Err.Message = "account still closed"
			d.Reason, d.Class, d.Attempts = envelope.ReasonPermanent, "*main.Closed", round
		})
		require.Equal(w, driver.Receipt{ID: id, Result: driver.DiedAgain}, w.put(died)[0])
		got := w.get(id)
		require.Equal(w, []dlq.Status{dlq.Pending, dlq.Pending, dlq.Parked}[round-1], got.Status)
		require.Equal(w, round, got.RedriveCount)
		require.Equal(w, round, got.DeathRedrive)
		require.Equal(w, "account still closed", got.ErrorMessage)
		require.Equal(w, died.Fingerprint, got.Fingerprint)
		require.Equal(w, envelope.ReasonPermanent, got.Reason)
		require.Equal(w, noon.Add(time.Second), got.CreatedAt)
		require.Equal(w, at.Add(time.Minute), got.DiedAt)
		require.Equal(w, "consumer billing", got.ChangedBy)

		// Reporting the same death again changes no status, even after the next redrive has begun.
		require.Equal(w, driver.Seen, w.put(died)[0].Result)
		again := w.claim(id, at.Add(2*time.Minute))
		require.Equal(w, driver.Seen, w.put(died)[0].Result)
		require.Equal(w, dlq.Retrying, w.get(id).Status)
		w.mustChange(driver.Change{
			Action: driver.ActionRelease, IDs: []int64{id}, Version: again.Version, At: at.Add(3 * time.Minute),
		})
	}
	require.Len(w, w.all(dlq.Filter{}), 1)
}

// A confirm of the broker closes an entry that waits for its outcome. It is no outcome once the message has died again,
// which a fast consumer reports before the confirms of the whole batch are recorded.
func (w *world) TestConfirmAfterDeath() {
	list := w.putMany(0, 3)
	for _, id := range list[:2] {
		w.put(redriven(w.claim(id, noon.Add(time.Hour)), noon.Add(2*time.Hour), dies("closed")))
	}
	w.act(driver.ActionPark, noon.Add(3*time.Hour), list[1])
	w.claim(list[2], noon.Add(time.Hour))
	results := must(w.Change(w.Context(), driver.Change{
		Action: driver.ActionSucceed, IDs: list, Actor: "redrive", At: noon.Add(4 * time.Hour),
	}))(w)
	for i, want := range []dlq.Status{dlq.Pending, dlq.Parked, dlq.Resolved} {
		require.Equal(w, want, w.get(list[i]).Status)
		require.Equal(w, want != dlq.Resolved, errors.Is(results[i].Err, dlq.ErrConflict))
	}
}

// A late death counts as the latest of its cause even if it does not change the entry's status, because an operator had
// stopped waiting for it.
func (w *world) TestLateDeath() {
	id := w.put(letter(1))[0].ID
	for round, at := range []time.Time{noon.Add(time.Hour), noon.Add(2 * time.Hour)} {
		sent := w.claim(id, at)
		w.releaseByHand(id, at.Add(time.Minute))
		late := redriven(sent, at.Add(5*time.Minute), dies("account still closed"))
		require.Equal(w, driver.Receipt{ID: id, Result: driver.DiedAgain}, w.put(late)[0])
		require.Equal(w, dlq.Pending, w.get(id).Status)
		groups := must(w.Groups(w.Context(), dlq.GroupQuery{Fingerprint: late.Fingerprint}))(w)
		require.Equal(w, at.Add(5*time.Minute), groups[0].LastSeen, "round %d", round)
	}
}

// Each death after a redrive is counted once, in its hour and for its cause, and stays counted when the entry dies
// again of another cause, when the death is reported again, when the entry is purged, and when the statistics are
// recomputed.
func (w *world) TestDeathsByHour() {
	id := w.put(letter(1))[0].ID
	hour := noon.Truncate(time.Hour)
	want := []wire.HourCount{{Hour: hour, Count: 1}}
	for round, text := range []string{"account still closed", "account still closed", "no stock"} {
		at := noon.Add(time.Duration(round) * time.Hour)
		died := redriven(w.claim(id, at), at.Add(time.Minute), dies(text))
		require.Equal(w, driver.DiedAgain, w.put(died)[0].Result)
		require.Equal(w, driver.Seen, w.put(died)[0].Result)
		if round > 0 {
			want = append(want, wire.HourCount{Hour: hour.Add(time.Duration(round) * time.Hour)})
		}
		want[round].DiedAgain = 1
	}
	check := func(want []wire.HourCount) {
		w.Helper()
		for range 2 {
			stats := must(w.Stats(w.Context(), dlq.StatsQuery{Since: noon, Now: noon.Add(9 * time.Hour)}))(w)
			require.Equal(w, want, stats.Hourly)
			require.NoError(w, w.Recount(w.Context()))
		}
	}
	check(want)
	groups := must(w.Groups(w.Context(), dlq.GroupQuery{CauseText: "no stock", TrendSince: noon}))(w)
	require.Len(w, groups, 1)
	require.Len(w, groups[0].Trend, 2, "the hour of the first death, and that of the second")
	require.Equal(w, want[2], groups[0].Trend[1], "the other deaths have another cause")

	w.act(driver.ActionResolve, noon.Add(3*time.Hour), id)
	w.purge(noon.Add(4*time.Hour), noon.Add(4*time.Hour))
	want[0].Count = 0
	check(want)
}

// Without a position, the same message may be sent again after its entry was closed; that death must not be lost.
func (w *world) TestResentAfterItWasClosed() {
	resend := func(at time.Time, position string) *dlq.Entry {
		return letter(1, func(d *envelope.DeadLetter) { d.At, d.Origin.Position = at, position })
	}
	for _, close := range []driver.Action{driver.ActionResolve, driver.ActionDiscard} {
		position := string(close)
		closed := noon.Add(time.Hour)
		with := w.put(resend(noon, position))[0].ID
		without := w.put(letter(1, func(d *envelope.DeadLetter) { d.Origin.Position, d.Handler = "", position }))[0].ID
		w.act(close, closed, with)
		w.edit(without, "edited", noon)
		w.act(close, closed, without)
		again := func(at time.Time) *dlq.Entry {
			return letter(1, func(d *envelope.DeadLetter) { d.At, d.Origin.Position, d.Handler = at, "", position })
		}
		require.Equal(w, driver.Seen, w.put(resend(closed.Add(time.Minute), position))[0].Result,
			"the same position is the same delivery")
		require.Equal(w, driver.Seen, w.put(again(closed.Add(-time.Minute)))[0].Result,
			"a death before the entry was closed is already known")
		require.Equal(w, driver.DiedAgain, w.put(again(closed.Add(time.Minute)))[0].Result)
		require.Equal(w, dlq.Pending, w.get(without).Status)
		require.True(w, w.get(without).ResolvedAt.IsZero())
		require.Equal(w, again(noon).Body.Payload, w.get(without).Body.Payload, "the message that died, not the edit")
	}
}

// edit gives an entry another payload.
func (w *world) edit(id int64, payload string, at time.Time) {
	w.Helper()
	body := &dlq.Body{Payload: []byte(payload)}
	must(w.Revise(w.Context(), driver.Revision{EntryID: id, Body: body, Actor: "ana", At: at}))(w)
}

// A handler may copy the headers of a redriven message to the messages that it publishes; their deaths must not be
// attributed to that redrive.
func (w *world) TestCopiedRedriveHeaders() {
	id := w.put(letter(1))[0].ID
	sent := w.claim(id, noon.Add(time.Hour))
	for name, edit := range map[string]func(*envelope.DeadLetter){
		"topic":    topic("invoices"),
		"consumer": func(d *envelope.DeadLetter) { d.Origin.Consumer = "mail" },
		"message":  header(envelope.KeyMessageID, "another"),
		"redrive":  header(envelope.KeyRedriveCount, "2147483647"),
		"no entry": header(envelope.KeyRedriveID, "4711"),
	} {
		receipt := w.put(redriven(sent, noon.Add(2*time.Hour), edit))[0]
		require.Equal(w, driver.Stored, receipt.Result, name)
		require.NotEqual(w, id, receipt.ID)
	}
	require.Equal(w, dlq.Retrying, w.get(id).Status)
}

// The death of a redrive that an operator stopped waiting for does not revert an edit made since.
func (w *world) TestLateDeathKeepsEdit() {
	id := w.put(letter(1))[0].ID
	sent := w.claim(id, noon.Add(time.Hour))
	at := noon.Add(2 * time.Hour)
	w.releaseByHand(id, at)
	w.edit(id, "edited", at)
	require.Equal(w, driver.DiedAgain, w.put(redriven(sent, at.Add(time.Minute)))[0].Result)
	got := w.get(id)
	require.Equal(w, []any{1, "edited"}, []any{got.Revision, string(got.Body.Payload)})
}

// Anyone can write a redrive's number. One that no redrive has says nothing, also where its entry is unknown; the entry
// can be redriven, and its success is found.
func (w *world) TestForgedRedriveNumber() {
	for n, number := range []string{"1000000", "1000001", "2147483647"} {
		id := w.put(letter(n, header(envelope.KeyRedriveID, "4711"), header(envelope.KeyRedriveCount, number)))[0].ID
		require.Zero(w, w.get(id).RedriveCount, number)
		m := dlq.RedriveMessage(w.claim(id, noon.Add(time.Hour)))
		w.succeeds(id, noon.Add(2*time.Hour), driver.Report{Number: envelope.RedriveCount(m)})
	}
}

// If the body has changed in between, it is stored as a new revision in addition to the original.
func (w *world) TestChangedBodyIsKept() {
	id := w.put(letter(1))[0].ID
	changed := redriven(w.claim(id, noon.Add(time.Hour)), noon.Add(2*time.Hour), payload("changed"))
	require.Equal(w, driver.DiedAgain, w.put(changed)[0].Result)
	got := w.get(id)
	require.Equal(w, 1, got.Revision)
	require.Equal(w, int64(len("changed")), got.Size)
	require.Equal(w, "changed", string(got.Body.Payload))
	require.Equal(w, `{"n":1}`, string(must(w.Body(w.Context(), id, 0))(w).Payload))
	fails(w.Body(w.Context(), id, 2))(w, dlq.ErrNotFound)
}

// A redrive whose process died can be repeated once its lease has expired, and not before.
func (w *world) TestLeaseExpires() {
	id := w.put(letter(1))[0].ID
	at := noon.Add(time.Hour)
	redrive := driver.Change{Action: driver.ActionRedrive, IDs: []int64{id}, At: at, Lease: time.Minute, Actor: "who died"}
	claimed := w.mustChange(redrive)
	redrive.Actor = "ana"
	for _, action := range []driver.Action{driver.ActionRedrive, driver.ActionResolve, driver.ActionDiscard} {
		early := redrive
		early.Action, early.At = action, at.Add(time.Minute-time.Microsecond)
		_, err := w.change(early)
		require.ErrorContains(w, err, "who died")
	}
	redrive.At = at.Add(time.Minute)
	require.Equal(w, 2, w.mustChange(redrive).RedriveCount)
	// The first claimant, which was slow, can neither release nor extend it.
	for _, action := range []driver.Action{driver.ActionRelease, driver.ActionPublished} {
		fails(w.change(driver.Change{
			Action: action, IDs: []int64{id}, Version: claimed.Version, At: at.Add(2 * time.Minute),
		}))(w, dlq.ErrConflict)
	}
	require.Equal(w, dlq.Retrying, w.get(id).Status)
	// When two copies are in flight, the death of the first changes nothing once that of the second is recorded.
	first, second := *w.get(id), *w.get(id)
	first.RedriveCount = 1
	require.Equal(w, driver.DiedAgain, w.put(redriven(&second, at.Add(3*time.Minute)))[0].Result)
	require.Equal(w, driver.Seen, w.put(redriven(&first, at.Add(4*time.Minute)))[0].Result)
}

// An admin ends the wait for an outcome: the redrive still counts, and so does an outcome that arrives late.
func (w *world) TestManualRelease() {
	for n, late := range []string{"success", "death"} {
		id := w.put(letter(n))[0].ID
		sent := w.claim(id, noon.Add(time.Hour))
		at := noon.Add(2 * time.Hour)
		fails(w.Change(w.Context(), driver.Change{
			Action: driver.ActionReleaseByHand, IDs: []int64{id}, Actor: "ana", At: at,
		}))(w, dlq.ErrInvalid, "it needs a note")
		w.releaseByHand(id, at)
		got := w.get(id)
		require.Equal(w, []any{dlq.Pending, 1, true}, []any{got.Status, got.RedriveCount, got.LeaseUntil.IsZero()})
		if late == "success" {
			w.succeeds(id, at.Add(time.Hour), driver.Report{MessageID: sent.EventID, Number: 1})
			require.Equal(w, dlq.Resolved, w.get(id).Status)
			continue
		}
		require.Equal(w, driver.Receipt{ID: id, Result: driver.DiedAgain}, w.put(redriven(sent, at.Add(time.Hour)))[0])
	}
}

// The audit log names the run of a success, a death and a release; a single redrive has none.
func (w *world) TestAuditOfRun() {
	for n, run := range []string{"run-1", ""} {
		id := w.put(letter(n))[0].ID
		w.mustChange(driver.Change{Action: driver.ActionRedrive, IDs: []int64{id}, At: noon, Run: run})
		w.releaseByHand(id, noon.Add(time.Minute))
		w.succeeds(id, noon.Add(time.Hour), driver.Report{Number: 1})
		for _, record := range w.recorded(3, dlq.AuditFilter{EntryID: id}, dlq.Page{}) {
			require.Equal(w, run, record.Run, string(record.Action))
		}
	}
}
