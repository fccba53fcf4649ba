package redrive

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// judge ends a run that is complete, and stops one that fails too often.
func (d *runDriver) judge(ctx context.Context) (changed bool, err error) {
	r := d.run
	if r.State != Running {
		return false, nil
	}
	outcomes := r.outcomes()
	share := r.failureShare()
	step, ended := r.canaryEnded()
	ended = ended && outcomes > 0 && d.under == 0 && !d.recordable()
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
	case r.Counts.Waiting == 0 && r.Counts.Open() == 0 && d.under == 0 && !d.recordable():
		return true, d.change(ctx, ActionComplete, "")
	case d.refusals >= maxRunRefusals && d.under == 0 && !d.recordable():
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

// canary is how many more entries may be claimed until those before have to be judged: their outcomes may arrive before
// the broker's confirm of the publish, and are not judged until then.
func (r *Run) canary() (left int64) {
	started, total := r.Counts.Started(), int64(0)
	for _, size := range r.Spec.Canary {
		total += int64(size)
		if started < total {
			return total - started
		}
		if started == total && (r.Counts.Open() > 0 || r.outcomes() > 0) {
			return 0
		}
	}
	return math.MaxInt64
}

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

// maxPace is how long to sleep for a rate before looking at it again.
const maxPace = time.Hour

// paced is how many of n messages the rate allows now; when it allows none, until is when it will.
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
	// A rate of one in a thousand years must not overflow into the past, which would poll the store without a pause.
	seconds := min((1-tokens)/float64(limit), maxPace.Seconds())
	return 0, now.Add(time.Duration(seconds*float64(time.Second)) + time.Microsecond)
}
