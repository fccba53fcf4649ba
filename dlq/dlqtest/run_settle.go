package dlqtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/envelope"
)

// Outcomes are read from the entries, however and whenever they were recorded: success, death, none in time, entry
// purged, entry changed by others.
func testRunSettle(t *testing.T, db Database) {
	t.Helper()
	s := db.open(t)
	list := putMany(t, s, 0, 8)
	r := newRun(t, s, redrive.Spec{ID: "run-1"}, 100)
	at := noon.Add(time.Hour)
	claimed := claimAll(t, s, r.ID, at, 100)
	step := stepOf(r.ID, at)
	step.Published = list[:6]
	mustStep(t, s, step)
	require.Equal(t, redrive.Counts{Claimed: 2, Out: 6}, settled(t, s, r.ID, at.Add(time.Second)), "nothing is known yet")

	// A success from a consumer whose clock is behind, a death, and a death followed by a manual redrive.
	mustChange(t, s, driver.Change{
		Action: driver.ActionSucceed, IDs: list[0:1], Actor: "redrive", At: at.Add(-time.Minute),
	})
	for _, i := range []int{1, 2} {
		e := get(t, s, list[i])
		put(t, s, redriven(e, at.Add(time.Minute), func(d *envelope.DeadLetter) { d.Err.Message = "closed" }))
	}
	mustChange(t, s, driver.Change{
		Action: driver.ActionRedrive, IDs: list[2:3], Actor: "bob", At: at.Add(2 * time.Minute),
	})
	// The process published this one, and died before it could record that.
	mustChange(t, s, driver.Change{
		Action: driver.ActionSucceed, IDs: list[6:7], Actor: "redrive", At: at.Add(time.Minute),
	})
	// Succeeded and purged before the next look.
	mustChange(t, s, driver.Change{
		Action: driver.ActionSucceed, IDs: list[3:4], Actor: "redrive", At: at.Add(time.Second),
	})
	must(s.Purge(t.Context(), dlq.Purge{ClosedBefore: at.Add(2 * time.Second), Actor: "cron", At: at}))(t)

	now := at.Add(30 * time.Second)
	got := settled(t, s, r.ID, now)
	require.Equal(t, redrive.Counts{Claimed: 1, Out: 2, Succeeded: 1, Failed: 2, Lost: 2}, got)
	failed := itemsOf(t, s, r.ID, redrive.ItemFailed)
	require.Equal(t, []string{"closed", "closed"}, []string{failed[0].Detail, failed[1].Detail})
	require.Equal(t, now, failed[0].SettledAt)

	// The claim that was never published is waiting again, with the entry as it is now; its next redrive has another
	// number.
	got = settled(t, s, r.ID, at.Add(time.Minute))
	require.Equal(t, redrive.Counts{Waiting: 1, Out: 2, Succeeded: 1, Failed: 2, Lost: 2}, got)
	again := claimAll(t, s, r.ID, at.Add(time.Minute), 100)
	require.Len(t, again, 1)
	require.Equal(t, []any{list[7], 2, claimed[7].Version + 1},
		[]any{again[0].ID, again[0].RedriveCount, again[0].Version})
	// No outcome within the timeout.
	got = settled(t, s, r.ID, at.Add(time.Hour))
	require.Equal(t, int64(4), got.Lost)
	got = settled(t, s, r.ID, at.Add(3*time.Hour))
	require.Equal(t, int64(1), got.Waiting, "the claim was never published")
	_, n, err := s.SettleRun(t.Context(), r.ID, holder, at.Add(3*time.Hour), 100)
	require.NoError(t, err)
	require.Zero(t, n)
}

// An outcome may arrive after its claim has expired and before the next one: from a slow consumer, for a message that
// was sent by a process which died before it could record that. It is the outcome of that run's redrive, and the
// message is not sent again.
func testRunLateOutcome(t *testing.T, db Database) { t.Helper(); lateOutcome(t, db.open(t), false) }

func testRunLateOutcomeKnown(t *testing.T, db Database) { t.Helper(); lateOutcome(t, db.open(t), true) }

func lateOutcome(t *testing.T, s Store, knowing bool) {
	t.Helper()
	list := putMany(t, s, 0, 4)
	r := newRun(t, s, redrive.Spec{ID: "run-1"}, 100)
	at := noon.Add(time.Hour)
	require.Len(t, claimAll(t, s, r.ID, at, 100), 4)
	at = at.Add(time.Minute)
	require.Equal(t, redrive.Counts{Waiting: 4}, settled(t, s, r.ID, at), "the claims have expired")

	step := stepOf(r.ID, at)
	for _, id := range list[:3] {
		e := get(t, s, id)
		step.Claims = append(step.Claims, redrive.Claim{EntryID: id, Version: e.Version})
	}
	mustChange(t, s, driver.Change{Action: driver.ActionSucceed, IDs: list[0:1], Actor: "redrive", At: at})
	put(t, s, redriven(get(t, s, list[1]), at, func(d *envelope.DeadLetter) { d.Err.Message = "closed" }))
	for _, action := range []driver.Action{driver.ActionRelease, driver.ActionResolve} { // by an operator in the meantime
		mustChange(t, s, driver.Change{Action: action, IDs: list[2:3], Actor: "bob", At: at})
	}
	if knowing {
		step.Known = map[int64]*dlq.Entry{}
		for _, id := range list[:3] {
			step.Known[id] = get(t, s, id)
		}
	}
	stepped := mustStep(t, s, step)
	require.Empty(t, stepped.Claimed)
	require.Equal(t, redrive.Counts{Waiting: 1, Succeeded: 1, Failed: 1, Skipped: 1}, stepped.Run.Counts)
	require.Equal(t, "closed", itemsOf(t, s, r.ID, redrive.ItemFailed)[0].Detail)
	require.Contains(t, itemsOf(t, s, r.ID, redrive.ItemSkipped)[0].Detail, "by bob")

	// An entry that the broker refused was not sent: what happens to it later is not an outcome of the run.
	last := claimAll(t, s, r.ID, at, 1)
	require.Len(t, last, 1)
	step = stepOf(r.ID, at)
	step.Released = []redrive.Refusal{{EntryID: list[3], Detail: "broker is down"}}
	mustStep(t, s, step)
	e := get(t, s, list[3])
	mustChange(t, s, driver.Change{Action: driver.ActionRedrive, IDs: list[3:4], Actor: "bob", At: at})
	mustChange(t, s, driver.Change{Action: driver.ActionSucceed, IDs: list[3:4], Actor: "redrive", At: at})
	step = stepOf(r.ID, at)
	step.Claims = []redrive.Claim{{EntryID: list[3], Version: e.Version}}
	require.Equal(t, redrive.Counts{Succeeded: 1, Failed: 1, Skipped: 2}, mustStep(t, s, step).Run.Counts)
}
