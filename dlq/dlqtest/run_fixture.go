package dlqtest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// newRun creates a run and freezes its set; holder has its lease.
func (w *world) newRun(spec redrive.Spec, chunk int) *redrive.Run {
	w.Helper()
	spec = must(spec.Resolve())(w)
	r := &redrive.Run{Run: wire.Run{
		ID: spec.ID, Spec: spec, State: redrive.Preparing, Version: 1, CreatedAt: noon, CreatedBy: "ana", ChangedAt: noon,
		ChangedBy: "ana",
	}}
	require.NoError(w, w.CreateRun(w.Context(), r,
		driver.AuditRecord{At: noon, Actor: "ana", Action: redrive.ActionStart, Run: r.ID}))
	r = must(w.LeaseRun(w.Context(), r.ID, holder, noon, 1000*time.Hour))(w)
	for r.FrozenTo < r.FreezeTo {
		before := r.FrozenTo
		r = must(w.FreezeRun(w.Context(), r.ID, holder, noon, chunk))(w)
		require.Greater(w, r.FrozenTo, before)
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

func (w *world) mustStep(step redrive.Step) redrive.Stepped {
	w.Helper()
	return must(w.StepRun(w.Context(), step))(w)
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
