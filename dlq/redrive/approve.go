package redrive

import (
	"context"
	"strings"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// readyRun moves a run whose set is frozen to its next state: to approval, when its creator would send more than they
// may alone.
func (rn *Runner) readyRun(ctx context.Context, run *Run) (*Run, error) {
	ready := *run
	ready.NeedsApproval = run.needsApproval()
	if run.ApprovalAbove >= 0 && !ready.NeedsApproval && run.ApprovedBy == "" && run.Counts.Total() > 0 {
		limit, err := dlq.Approval{Above: run.ApprovalAbove, Window: run.ApprovalWindow.Duration()}.Resolve()
		if err != nil {
			return nil, err
		}
		granted, err := limit.Reserve(ctx, rn.store, driver.Reservation{
			Key: driver.RunKey(run.ID), Actor: run.CreatedBy, Entries: run.Counts.Total(), Open: true,
		})
		if err != nil {
			return nil, err
		}
		ready.NeedsApproval = !granted
	}
	return rn.changeRunWith(ctx, run.ID, ActionReady, dlq.By{Actor: run.CreatedBy}, func(r *Run) error {
		r.NeedsApproval = ready.NeedsApproval
		return nil
	})
}

// looser reports whether a spec sends more, or sends it faster, than the approved one.
func looser(approved, spec *Spec) bool {
	return faster(spec.Rate, approved.Rate) || faster(float64(spec.MaxOut), float64(approved.MaxOut)) ||
		spec.Stop.Share > approved.Stop.Share || spec.Stop.MinSample > approved.Stop.MinSample
}

// faster compares bounds; 0 or less means no bound.
func faster(a, b float64) bool { return b > 0 && (a <= 0 || a > b) }

// personal reports whether an entry is waiting because of a person: they edited it, or restored it. A rule that sends
// it would do for them what they may not do alone.
func personal(e *dlq.Entry) bool {
	return e.Revision > 0 || e.ChangedBy != e.DiedBy() && !strings.HasPrefix(e.ChangedBy, rulePrefix)
}
