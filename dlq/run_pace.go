package dlq

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/time/rate"
)

// judge ends a run that is complete, and stops one that fails too often.
func (d *runDriver) judge(ctx context.Context) (changed bool, err error) {
	r := d.run
	if r.State != RunRunning {
		return false, nil
	}
	outcomes := r.Counts.Outcomes() - r.Baseline.Outcomes()
	share := r.failureShare()
	enough := outcomes >= int64(r.Spec.Stop.MinSample)
	if r.Counts.Open() == 0 && outcomes > 0 && r.Counts.Started() <= r.canarySize() {
		enough = true // a canary is judged by what there is
	}
	switch {
	case enough && share > r.Spec.Stop.Share && r.Counts.Waiting > 0:
		return true, d.change(ctx, ActionRunStop, fmt.Sprintf("%.0f %% of %d outcomes are failures, more than %.0f %%",
			share*100, outcomes, r.Spec.Stop.Share*100))
	case r.Counts.Waiting == 0 && r.Counts.Open() == 0 && d.under == 0 && !d.recordable():
		return true, d.change(ctx, ActionRunComplete, "")
	case d.refusals >= maxRunRefusals && d.under == 0 && !d.recordable():
		d.refusals = 0
		return true, d.change(ctx, ActionRunStop, d.refusal)
	default:
		return false, nil
	}
}

func (d *runDriver) change(ctx context.Context, action Action, note string) error {
	run, err := d.m.changeRun(ctx, d.run.ID, action, By{Actor: "redrive", Note: note})
	if errors.Is(err, ErrConflict) { // a person was faster
		run, err = d.m.store.Run(ctx, d.run.ID)
	}
	if err == nil {
		d.run = run
	}
	return err
}

// canary is how many more entries may be claimed until the outcomes of those before have to be there.
func (r *Run) canary() (left int64) {
	started, total := r.Counts.Started(), int64(0)
	for _, size := range r.Spec.Canary {
		total += int64(size)
		if started < total {
			return total - started
		}
		if started == total && r.Counts.Open() > 0 {
			return 0
		}
	}
	return math.MaxInt64
}

// canarySize is how many entries the canary has in all its steps.
func (r *Run) canarySize() int64 {
	total := int64(0)
	for _, size := range r.Spec.Canary {
		total += int64(size)
	}
	return total
}

// paced is how many of n messages the rate allows now; when it allows none, until says when it will.
func (d *runDriver) paced(now time.Time, n int64) (allowed int64, until time.Time) {
	limit := rate.Limit(d.run.Spec.Rate)
	if limit == 0 || n <= 0 {
		d.limiter = nil
		return n, time.Time{}
	}
	if d.limiter == nil || d.limiter.Limit() != limit {
		// A tenth of a second's worth at once: smooth enough for a consumer, and big enough for batches.
		d.limiter = rate.NewLimiter(limit, max(1, int(limit/10)))
	}
	tokens := d.limiter.TokensAt(now)
	if tokens >= 1 {
		return min(n, int64(tokens)), time.Time{}
	}
	return 0, now.Add(time.Duration((1-tokens)/float64(limit)*float64(time.Second)).Truncate(time.Microsecond) + time.Microsecond)
}
