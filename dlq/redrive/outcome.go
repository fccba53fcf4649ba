package redrive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// settle reads the outcomes of claimed and published items from their entries: often while outcomes arrive, rarely
// while they do not.
func (d *runDriver) settle(ctx context.Context) error {
	began := time.Now()
	if d.run.Counts.Open() == 0 || began.Sub(d.settledAt) < d.settleEvery() {
		return nil
	}
	for {
		run, n, err := d.runner.runs.SettleRun(ctx, d.run.ID, d.holder, d.runner.now(ctx), settleLimit)
		if err != nil {
			return err
		}
		d.run, d.settledAt = run, time.Now()
		d.settling = d.settledAt.Sub(began)
		if n == 0 {
			d.settleIn = min(2*d.settleIn, settleSlow)
		} else {
			d.settleIn = settleFast
		}
		if n < settleLimit {
			return nil
		}
	}
}

func (d *runDriver) settleEvery() time.Duration {
	if !d.awaitOutcomes && (d.inFlight > 0 || len(d.ahead) > 0) {
		return max(settleBusy, d.settleIn, settleShare*d.settling)
	}
	return max(d.settleIn, 3*d.settling)
}

// judge ends a run that is complete, and stops one that fails too often.
func (d *runDriver) judge(ctx context.Context) (changed bool, err error) {
	r := d.run
	if r.State != Running {
		return false, nil
	}
	outcomes := r.outcomes()
	share := r.failureShare()
	step, ended := r.canaryEnded()
	ended = ended && outcomes > 0 && d.inFlight == 0 && !d.recordable()
	switch {
	case ended && share > r.Spec.Stop.Share && r.Counts.Waiting > 0:
		return true, d.change(ctx, ActionStop,
			fmt.Sprintf("canary step %d of %d: %.0f %% of its %d outcomes are failures, more than %.0f %%",
				step+1, len(r.Spec.Canary), share*100, outcomes, r.Spec.Stop.Share*100))
	case outcomes >= int64(r.Spec.Stop.MinSample) && share > r.Spec.Stop.Share && r.Counts.Waiting > 0:
		return true, d.change(ctx, ActionStop, fmt.Sprintf("%.0f %% of %d outcomes are failures, more than %.0f %%",
			share*100, outcomes, r.Spec.Stop.Share*100))
	case ended && r.Counts.Waiting > 0: // the next step is judged by its own outcomes
		return true, d.change(ctx, ActionCanary,
			fmt.Sprintf("step %d of %d: %.0f %% of %d failed", step+1, len(r.Spec.Canary), share*100, outcomes))
	case r.Counts.Waiting == 0 && r.Counts.Open() == 0 && d.inFlight == 0 && !d.recordable():
		return true, d.change(ctx, ActionComplete, "")
	case d.refusals >= maxRunRefusals && d.inFlight == 0 && !d.recordable():
		d.refusals = 0
		return true, d.change(ctx, ActionStop, d.refusal)
	default:
		return false, nil
	}
}

func (d *runDriver) change(ctx context.Context, action driver.Action, note string) error {
	run, err := d.runner.changeRun(ctx, d.run.ID, action, dlq.By{Actor: "redrive", Note: note})
	if errors.Is(err, dlq.ErrConflict) { // a person was faster
		run, err = d.runner.runs.Run(ctx, d.run.ID)
	}
	if err == nil {
		d.run = run
	}
	return err
}

// outcomes are those since the last start, resume or canary step, which have not been judged yet.
func (r *Run) outcomes() int64 { return r.Counts.Outcomes() - r.Baseline.Outcomes() }

// canaryEnded reports whether a step of the canary, counted from 0, has all its outcomes and nothing after it has
// begun.
func (r *Run) canaryEnded() (step int, ended bool) {
	total := int64(0)
	for step, size := range r.Spec.Canary {
		if total += int64(size); r.Counts.Started() == total {
			return step, r.Counts.Open() == 0
		}
	}
	return 0, false
}
