package driver_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/envelope"
)

// Times of successes are from the clocks of consumers: only the same report, again, is old.
func TestChange_SuccessesOfTwoClocks(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	e := driver.Entry{ID: 7, EventID: "event-1", Status: driver.Pending, Version: 1, RedriveBudget: 3, DiedAt: now}
	do := func(action driver.Action, at time.Time, reports ...driver.Report) error {
		c := driver.Change{
			Action: action, IDs: []int64{7}, Actor: "ana", At: at, Lease: time.Hour, Reports: reports,
		}
		after, err := c.Apply(e)
		if err == nil {
			e = after
		}
		return err
	}
	ahead := now.Add(5 * time.Minute)
	require.NoError(t, do(driver.ActionRedrive, now))
	require.NoError(t, do(driver.ActionSucceed, ahead, driver.Report{Number: 1}))
	require.NoError(t, do(driver.ActionRestore, now.Add(time.Second)))
	require.ErrorIs(t, do(driver.ActionSucceed, ahead, driver.Report{Number: 1}), driver.ErrConflict, "reported twice")
	require.NoError(t, do(driver.ActionRedrive, now.Add(2*time.Second)))
	require.NoError(t, do(driver.ActionSucceed, now.Add(3*time.Second), driver.Report{Number: 2}))
	require.Equal(t, driver.Resolved, e.Status)
	require.Equal(t, now.Add(3*time.Second), e.SucceededAt)

	require.NoError(t, do(driver.ActionRestore, now.Add(4*time.Second)))
	require.NoError(t, do(driver.ActionRedrive, now.Add(4*time.Second)))
	require.NoError(t, do(driver.ActionSucceed, now.Add(time.Second)), "the confirm, by the database's clock")

	// The success of a redrive before the one that died.
	require.NoError(t, do(driver.ActionRestore, now.Add(4*time.Second)))
	require.NoError(t, do(driver.ActionRedrive, now.Add(5*time.Second)))
	late := now.Add(6 * time.Second)
	e, _ = e.Die(&driver.Entry{RedriveOf: 7, EventID: "event-1", DeathRedrive: 4, DiedAt: late, LastSeenAt: late})
	require.NotEqual(t, driver.Retrying, e.Status)
	for number := 1; number < 4; number++ {
		err := do(driver.ActionSucceed, ahead, driver.Report{Number: number})
		require.ErrorIs(t, err, driver.ErrConflict, "redrive %d", number)
	}
	require.NoError(t, do(driver.ActionRedrive, now.Add(7*time.Second)))
	require.ErrorIs(t, do(driver.ActionSucceed, ahead, driver.Report{Number: 3}), driver.ErrConflict)
	require.Zero(t, e.SucceededAt)
	require.NoError(t, do(driver.ActionSucceed, now.Add(8*time.Second), driver.Report{Number: 5}))
}

// A redriven message may be delivered twice, after a crash before its ack or a lost confirm: it has been handled if one
// of them succeeds, and a report of that counts once.
func TestChange_SuccessAfterDeath(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	e := driver.Entry{ID: 7, Status: driver.Pending, Version: 1, RedriveBudget: 3, DiedAt: now}
	do := func(action driver.Action, reports ...driver.Report) (err error) {
		c := driver.Change{Action: action, IDs: []int64{7}, Actor: "ana", At: now, Lease: time.Hour, Reports: reports}
		e, err = c.Apply(e)
		return err
	}
	require.NoError(t, do(driver.ActionRedrive))
	e, _ = e.Die(&driver.Entry{RedriveOf: 7, DeathRedrive: 1, DiedAt: now})
	require.Equal(t, driver.Pending, e.Status)
	report := driver.Report{Number: 1}
	require.NoError(t, do(driver.ActionSucceed, report))
	require.Equal(t, driver.Resolved, e.Status)
	require.NoError(t, do(driver.ActionRestore))
	require.ErrorIs(t, do(driver.ActionSucceed, report), driver.ErrConflict)
}

// A redrive died, and another one began because the wait for its outcome was over. When the death becomes known, from a
// spool perhaps, the later redrive decides.
func TestEntry_DieAfterAnotherRedrive(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	at, lease := now.Add(time.Minute), now.Add(time.Hour)
	waits := driver.Entry{Status: driver.Retrying, LeaseUntil: lease}
	handled := driver.Entry{Status: driver.Resolved, SucceededAt: now, ResolvedAt: now, ResolvedBy: "redrive"}
	discarded := driver.Entry{Status: driver.Discarded, ResolvedAt: now, ResolvedBy: "ana"}
	for name, c := range map[string]struct {
		before driver.Entry
		number int
		at     time.Time
		after  driver.Entry
	}{
		"it is in flight":               {waits, 1, at, waits},
		"it is overdue":                 {waits, 1, lease, driver.Entry{Status: driver.Pending}},
		"it died":                       {waits, 2, at, driver.Entry{Status: driver.Pending}},
		"it was handled":                {handled, 1, at, handled},
		"it was handled, and died":      {handled, 2, at, driver.Entry{Status: driver.Pending, SucceededAt: now}},
		"it was not sent, as it seemed": {waits, 3, at, driver.Entry{Status: driver.Parked}},
		"a person had discarded it":     {discarded, 2, at, discarded},
	} {
		e := c.before
		e.ID, e.RedriveCount, e.RedriveBudget, e.ChangedAt, e.ChangedBy = 7, 2, 3, now, "ana"
		after, result := e.Die(&driver.Entry{
			RedriveOf: 7, DeathRedrive: c.number, DiedAt: c.at, ErrorMessage: "closed",
			Origin: envelope.Origin{Consumer: "billing"},
		})
		require.Equal(t, driver.DiedAgain, result, name)
		require.Equal(t, []any{c.number, c.at, "closed"}, []any{after.DeathRedrive, after.DiedAt, after.ErrorMessage}, name)
		got := driver.Entry{
			Status: after.Status, LeaseUntil: after.LeaseUntil, SucceededAt: after.SucceededAt,
			ResolvedAt: after.ResolvedAt, ResolvedBy: after.ResolvedBy,
		}
		require.Equal(t, c.after, got, name)
		at, by := now, "ana"
		if c.after.Status != c.before.Status {
			at, by = c.at, "consumer billing"
		}
		require.Equal(t, []any{at, by}, []any{after.ChangedAt, after.ChangedBy}, name)
	}
}

// A late death does not make an entry look closed earlier: a death of before the closing, reported again, would reopen
// it.
func TestEntry_LateDeathKeepsTheClosing(t *testing.T) {
	t.Parallel()
	closed := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	e := driver.Entry{
		ID: 7, Status: driver.Resolved, RedriveCount: 2, RedriveBudget: 3, SucceededAt: closed, ResolvedAt: closed,
		ChangedAt: closed, ChangedBy: "redrive",
	}
	e, result := e.Die(&driver.Entry{RedriveOf: 7, DeathRedrive: 1, DiedAt: closed.Add(-time.Hour)})
	require.Equal(t, driver.DiedAgain, result)
	require.Equal(t, closed, e.ChangedAt)
	e, result = e.Die(&driver.Entry{DiedAt: closed.Add(-time.Minute)})
	require.Equal(t, driver.Seen, result)
	require.Equal(t, driver.Resolved, e.Status)
}
