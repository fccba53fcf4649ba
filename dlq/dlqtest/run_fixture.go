package dlqtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// newRun creates a run and freezes its set; holder has its lease.
func newRun(t *testing.T, s Store, spec redrive.Spec, chunk int) *redrive.Run {
	t.Helper()
	spec = must(spec.Resolve())(t)
	r := &redrive.Run{Run: wire.Run{
		ID: spec.ID, Spec: spec, State: redrive.Preparing, Version: 1, CreatedAt: noon, CreatedBy: "ana", ChangedAt: noon,
		ChangedBy: "ana",
	}}
	require.NoError(t, s.CreateRun(t.Context(), r,
		driver.AuditRecord{At: noon, Actor: "ana", Action: redrive.ActionStart, Run: r.ID}))
	r = must(s.LeaseRun(t.Context(), r.ID, holder, noon, 1000*time.Hour))(t)
	for r.FrozenTo < r.FreezeTo {
		before := r.FrozenTo
		r = must(s.FreezeRun(t.Context(), r.ID, holder, noon, chunk))(t)
		require.Greater(t, r.FrozenTo, before)
	}
	return r
}

const holder = "process 1"

// stepOf returns a step of the holder at that time.
func stepOf(run string, at time.Time) redrive.Step {
	return redrive.Step{
		Run: run, Holder: holder, At: at, Lease: 1000 * time.Hour, Actor: "ana", OutcomeTimeout: time.Hour,
		ClaimTimeout: time.Minute,
	}
}

func mustStep(t *testing.T, s Store, step redrive.Step) redrive.Stepped {
	t.Helper()
	stepped := must(s.StepRun(t.Context(), step))(t)
	return stepped
}

// claimAll claims the next items of a run.
func claimAll(t *testing.T, s Store, run string, at time.Time, limit int) []dlq.Entry {
	t.Helper()
	items := must(s.NextItems(t.Context(), run, 0, limit, 1<<30))(t)
	step := stepOf(run, at)
	for _, item := range items {
		step.Claims = append(step.Claims, redrive.Claim{EntryID: item.EntryID, Version: item.Version})
	}
	return mustStep(t, s, step).Claimed
}

func settled(t *testing.T, s Store, run string, at time.Time) redrive.Counts {
	t.Helper()
	r, _, err := s.SettleRun(t.Context(), run, holder, at, driver.MaxPage)
	require.NoError(t, err)
	return r.Counts
}

func itemsOf(t *testing.T, s Store, run string, state redrive.ItemState) []redrive.Item {
	t.Helper()
	items := must(s.RunItems(t.Context(), run, redrive.ItemFilter{State: state, Limit: driver.MaxPage}))(t)
	return items
}
