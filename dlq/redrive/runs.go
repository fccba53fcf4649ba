package redrive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/google/uuid"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/wait"
)

// freezeChunk is how many entries one transaction of the freezing looks at.
const freezeChunk = 10_000

// StartRun freezes the set that the spec selects and begins to redrive it, or waits for approval when the configuration
// requires one. The messages are sent by a process in [Runner.Work] or [Runner.Drive]. The error wraps [dlq.ErrInvalid]
// for an invalid spec, [dlq.ErrConflict] when its ID is taken.
func (rn *Runner) StartRun(ctx context.Context, spec Spec, by dlq.By) (*Run, error) {
	return rn.startRun(ctx, spec, by, true)
}

// startRun starts a run. A rule's run needs no approval: configuring the rule was the approval.
func (rn *Runner) startRun(ctx context.Context, spec Spec, by dlq.By, approval bool) (*Run, error) {
	spec, err := rn.CheckSpec(spec)
	if err != nil {
		return nil, err
	}
	if by.Actor == "" {
		return nil, fmt.Errorf("dlq: run: %w: no actor: name the person who starts it", dlq.ErrInvalid)
	}
	spec.ID = cmp.Or(spec.ID, uuid.Must(uuid.NewV7()).String()) // crypto/rand never fails
	at := rn.now(ctx).UTC().Truncate(time.Microsecond)
	run := &Run{Run: wire.Run{
		ID: spec.ID, Spec: spec, State: Preparing, Version: 1, CreatedAt: at, CreatedBy: by.Actor, Note: by.Note,
		ChangedAt: at, ChangedBy: by.Actor, ApprovalAbove: -1,
	}}
	if rn.cfg.Approval != nil && approval {
		run.ApprovalAbove, run.ApprovalWindow = rn.cfg.Approval.Above, wire.Seconds(rn.cfg.Approval.Window)
	}
	audit := driver.AuditRecord{At: at, Actor: by.Actor, Action: ActionStart, Note: by.Note, Run: run.ID}
	if err := rn.runs.CreateRun(ctx, run, audit); err != nil {
		return nil, err
	}
	rn.cfg.Logger.InfoContext(ctx, "redrive run started", "run", run.ID, "actor", by.Actor)
	holder := uuid.NewString()
	if _, err := rn.runs.LeaseRun(ctx, run.ID, holder, rn.now(ctx), rn.cfg.Lease); err != nil {
		return rn.startedElsewhere(ctx, run.ID, err)
	}
	frozen, err := rn.freeze(ctx, run.ID, holder)
	_, releaseErr := rn.runs.LeaseRun(context.WithoutCancel(ctx), run.ID, holder, rn.now(ctx), 0)
	if releaseErr != nil {
		rn.cfg.Logger.WarnContext(ctx, "the lease of a run could not be released; it expires", "run", run.ID,
			"error", releaseErr)
	}
	if err != nil {
		return rn.startedElsewhere(ctx, run.ID, err)
	}
	rn.wakeUp()
	return frozen, nil
}

// startedElsewhere handles a run that a working process took over while we were about to freeze it.
func (rn *Runner) startedElsewhere(ctx context.Context, id string, err error) (*Run, error) {
	if errors.Is(err, ErrLeaseLost) || errors.Is(err, dlq.ErrConflict) {
		return rn.runs.Run(ctx, id)
	}
	return nil, err
}

// freeze completes the run's set, and makes the run ready.
func (rn *Runner) freeze(ctx context.Context, id, holder string) (*Run, error) {
	for {
		at := rn.now(ctx)
		run, err := rn.runs.LeaseRun(ctx, id, holder, at, rn.cfg.Lease)
		if err != nil || run.State != Preparing { // someone has cancelled or stopped it
			return run, err
		}
		if run, err = rn.runs.FreezeRun(ctx, id, holder, at, freezeChunk); err != nil {
			return nil, err
		}
		if run.FrozenTo >= run.FreezeTo {
			return rn.readyRun(ctx, run)
		}
	}
}

// readyRun moves a run whose set is frozen to its next state: to approval, when its creator would send more than they
// may alone.
func (rn *Runner) readyRun(ctx context.Context, run *Run) (*Run, error) {
	needsApproval := run.needsApproval()
	if run.ApprovalAbove >= 0 && !needsApproval && run.ApprovedBy == "" && run.Counts.Total() > 0 {
		limit, err := dlq.Approval{Above: run.ApprovalAbove, Window: run.ApprovalWindow.Duration()}.Resolve()
		if err != nil {
			return nil, err
		}
		granted, err := limit.Reserve(ctx, rn.cfg.Store, driver.Reservation{
			Key: driver.RunKey(run.ID), Actor: run.CreatedBy, Entries: run.Counts.Total(), Open: true,
		})
		if err != nil {
			return nil, err
		}
		needsApproval = !granted
	}
	ready, err := rn.changeRunWith(ctx, run.ID, ActionReady, dlq.By{Actor: run.CreatedBy}, func(r *Run) error {
		r.NeedsApproval = needsApproval
		return nil
	})
	if errors.Is(err, dlq.ErrConflict) {
		// When it was cancelled before the reservation, there was none to close.
		if now, readErr := rn.runs.Run(ctx, run.ID); readErr == nil && now.State.Ended() && now.StartedAt.IsZero() {
			err = errors.Join(err, dlq.Approval{}.Unreserve(ctx, rn.cfg.Store, driver.RunKey(run.ID)))
		}
	}
	return ready, err
}

// CheckSpec resolves a spec and rejects what this Runner could not carry out.
func (rn *Runner) CheckSpec(spec Spec) (Spec, error) {
	spec, err := spec.Resolve()
	if err != nil {
		return spec, err
	}
	spec.OutcomeTimeout = cmp.Or(spec.OutcomeTimeout, wire.Seconds(rn.cfg.OutcomeTimeout))
	if _, known := rn.cfg.Targets[spec.Target]; spec.Target != "" && !known {
		return spec, fmt.Errorf("dlq: run: %w: target %.80q is not among the configured ones", dlq.ErrInvalid, spec.Target)
	}
	if spec.JQ != "" {
		if err := payload.Check(spec.JQ); err != nil {
			return spec, err
		}
	}
	return spec, nil
}

// Run returns a run. The error wraps [dlq.ErrNotFound] if it does not exist.
func (rn *Runner) Run(ctx context.Context, id string) (*Run, error) { return rn.runs.Run(ctx, id) }

// Runs returns a page of the runs that the filter selects, newest first unless the page says otherwise, and the next
// page's cursor.
func (rn *Runner) Runs(ctx context.Context, f RunFilter, p dlq.Page) ([]Run, string, error) {
	return rn.runs.Runs(ctx, f, p)
}

// RunItems returns a page of a run's entries and what happened to each, by entry id.
func (rn *Runner) RunItems(ctx context.Context, id string, f ItemFilter) ([]Item, error) {
	return rn.runs.RunItems(ctx, id, f)
}

// ApproveRun approves a run that waits for it. The error wraps [ErrForbidden] when by.Actor requested the run.
func (rn *Runner) ApproveRun(ctx context.Context, id string, by dlq.By) (*Run, error) {
	return rn.changeRun(ctx, id, ActionApprove, by)
}

// RejectRun cancels a run that waits for approval.
func (rn *Runner) RejectRun(ctx context.Context, id string, by dlq.By) (*Run, error) {
	return rn.changeRun(ctx, id, ActionReject, by)
}

// PauseRun stops redriving after the current batch. Messages already sent are still handled, and their outcomes
// recorded. A run that is still prepared is paused once its set is frozen.
func (rn *Runner) PauseRun(ctx context.Context, id string, by dlq.By) (*Run, error) {
	return rn.changeRun(ctx, id, ActionPause, by)
}

// ResumeRun continues a run that was paused or has stopped automatically. The failure share starts over.
func (rn *Runner) ResumeRun(ctx context.Context, id string, by dlq.By) (*Run, error) {
	return rn.changeRun(ctx, id, ActionResume, by)
}

// CancelRun ends a run. Its waiting entries are left as they were; messages already sent are still handled.
func (rn *Runner) CancelRun(ctx context.Context, id string, by dlq.By) (*Run, error) {
	return rn.changeRun(ctx, id, ActionCancel, by)
}

// Adjustment changes a run in progress; a nil field changes nothing.
type Adjustment struct {
	// Rate and MaxOut are those of [Spec].
	Rate   *float64
	MaxOut *int
	Stop   *StopCondition
}

// AdjustRun changes the speed and the bounds of a run that has not ended. A run that waits for approval cannot be
// changed, so that the approved run is the reviewed one; an approved one can only be slowed down and bounded more
// narrowly, otherwise the error wraps [ErrForbidden].
func (rn *Runner) AdjustRun(ctx context.Context, id string, change Adjustment, by dlq.By) (*Run, error) {
	return rn.changeRunWith(ctx, id, ActionAdjust, by, func(r *Run) error {
		before := r.Spec
		if change.Rate != nil {
			r.Spec.Rate = *change.Rate
		}
		if change.MaxOut != nil {
			r.Spec.MaxOut = *change.MaxOut
		}
		if change.Stop != nil {
			r.Spec.Stop = *change.Stop
		}
		spec, err := r.Spec.Resolve()
		if err == nil && r.ApprovedBy != "" && looser(&before, &spec) {
			err = fmt.Errorf("dlq: run %s: %w: %s approved it as it is: it may be slowed down, but not sped up or loosened", id,
				ErrForbidden, r.ApprovedBy)
		}
		r.Spec = spec
		return err
	})
}

// looser reports whether a spec sends more, or sends it faster, than the approved one.
func looser(approved, spec *Spec) bool {
	return faster(spec.Rate, approved.Rate) || faster(float64(spec.MaxOut), float64(approved.MaxOut)) ||
		spec.Stop.Share > approved.Stop.Share || spec.Stop.MinSample > approved.Stop.MinSample
}

// faster compares bounds; 0 or less means no bound.
func faster(a, b float64) bool { return b > 0 && (a <= 0 || a > b) }

// WatchRun yields the run now and whenever it has changed, until it has ended and nothing is outstanding, or the
// context ends. It polls the store. The last pair has the error, if any.
func (rn *Runner) WatchRun(ctx context.Context, id string, every time.Duration) iter.Seq2[*Run, error] {
	return func(yield func(*Run, error) bool) {
		var last Run
		for {
			run, err := rn.runs.Run(ctx, id)
			if err != nil {
				yield(nil, err)
				return
			}
			if run.Version != last.Version || run.Counts != last.Counts {
				last = *run
				if !yield(run, nil) {
					return
				}
			}
			if run.State.Ended() && run.Counts.Open() == 0 {
				return
			}
			if err := wait.For(ctx, every); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

func (rn *Runner) changeRun(ctx context.Context, id string, action driver.Action, by dlq.By) (*Run, error) {
	return rn.changeRunWith(ctx, id, action, by, func(*Run) error { return nil })
}

// changeRunWith reads, applies and writes by compare-and-set. Without a version the caller means the current run, so a
// change that loses against another is retried on its result; the state machine then decides whether it still fits.
func (rn *Runner) changeRunWith(ctx context.Context, id string, action driver.Action, by dlq.By,
	edit func(*Run) error,
) (*Run, error) {
	const attempts = 10
	for attempt := 1; ; attempt++ {
		before, err := rn.runs.Run(ctx, id)
		if err != nil {
			return nil, err
		}
		if err := before.check(action, by); err != nil {
			return nil, err
		}
		edited := *before
		if err := edit(&edited); err != nil {
			return nil, err
		}
		after, err := edited.apply(action, by, rn.now(ctx))
		if err != nil {
			return nil, err
		}
		err = rn.runs.ChangeRun(ctx, &after, driver.AuditRecord{
			At: after.ChangedAt, Actor: by.Actor, Action: action, Note: by.Note, Run: id, Version: after.Version,
			Detail: map[string]string{"from": string(before.State), "to": string(after.State)},
		})
		if errors.Is(err, dlq.ErrConflict) && by.Version == 0 && attempt < attempts {
			continue
		}
		if err != nil {
			return nil, err
		}
		rn.cfg.Logger.InfoContext(ctx, "redrive run changed", "run", id, "action", string(action),
			"from", string(before.State), "to", string(after.State), "actor", by.Actor, "note", by.Note)
		rn.wakeUp()
		return &after, nil
	}
}

// wakeUp makes Work of this Runner look at once.
func (rn *Runner) wakeUp() {
	wait.Signal(rn.wake)
}
