package dlq

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/google/uuid"
)

// freezeChunk is how many entries one transaction of the freezing looks at.
const freezeChunk = 10_000

// StartRun freezes the set that the spec picks and begins to redrive it, or waits for approval when the configuration asks for one.
// The messages are sent by a process that is in [Manager.Work] or [Manager.Drive]. The error wraps [ErrInvalid] for a spec that makes
// no sense, [ErrConflict] when there is a run with its ID.
func (m *Manager) StartRun(ctx context.Context, spec RunSpec, by By) (*Run, error) {
	return m.startRun(ctx, spec, by, true)
}

// startRun starts a run. That of a rule needs no approval: who configured the rule gave it.
func (m *Manager) startRun(ctx context.Context, spec RunSpec, by By, approval bool) (*Run, error) {
	spec, err := m.checkSpec(spec)
	if err != nil {
		return nil, err
	}
	if by.Actor == "" {
		return nil, fmt.Errorf("dlq: run: %w: no actor: say who starts it", ErrInvalid)
	}
	if spec.ID == "" {
		id, err := uuid.NewV7()
		if err != nil {
			return nil, fmt.Errorf("dlq: run: %w", err)
		}
		spec.ID = id.String()
	}
	at := stamp(time.Now())
	run := &Run{
		ID: spec.ID, Spec: spec, State: RunPreparing, Version: 1, CreatedAt: at, CreatedBy: by.Actor, Note: by.Note,
		ChangedAt: at, ChangedBy: by.Actor, ApprovalAbove: m.approvalAbove,
	}
	if !approval {
		run.ApprovalAbove = -1
	}
	audit := AuditRecord{At: at, Actor: by.Actor, Action: ActionRunStart, Note: by.Note, Run: run.ID}
	if err := m.store.CreateRun(ctx, run, audit); err != nil {
		return nil, err
	}
	m.logger.InfoContext(ctx, "redrive run started", "run", run.ID, "actor", by.Actor)
	holder := uuid.NewString()
	if _, err := m.store.LeaseRun(ctx, run.ID, holder, time.Now(), m.runLease); err != nil {
		return m.startedElsewhere(ctx, run.ID, err)
	}
	frozen, err := m.freeze(ctx, run.ID, holder)
	if _, giveBack := m.store.LeaseRun(context.WithoutCancel(ctx), run.ID, holder, time.Now(), 0); giveBack != nil {
		m.logger.WarnContext(ctx, "the lease of a run could not be given back; it runs out by itself", "run", run.ID, "error", giveBack)
	}
	if err != nil {
		return m.startedElsewhere(ctx, run.ID, err)
	}
	m.wakeUp()
	return frozen, nil
}

// startedElsewhere is for the run that a working process took over while we were about to freeze it.
func (m *Manager) startedElsewhere(ctx context.Context, id string, err error) (*Run, error) {
	if errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrConflict) {
		return m.store.Run(ctx, id)
	}
	return nil, err
}

// freeze carries the freezing on to its end.
func (m *Manager) freeze(ctx context.Context, id, holder string) (*Run, error) {
	for {
		at := time.Now()
		if _, err := m.store.LeaseRun(ctx, id, holder, at, m.runLease); err != nil {
			return nil, err
		}
		run, err := m.store.FreezeRun(ctx, id, holder, at, freezeChunk)
		if err != nil {
			return nil, err
		}
		if run.FrozenTo >= run.FreezeTo {
			return m.changeRun(ctx, id, ActionRunReady, By{Actor: run.CreatedBy})
		}
	}
}

// checkSpec resolves a spec and refuses what this Manager could not carry out.
func (m *Manager) checkSpec(spec RunSpec) (RunSpec, error) {
	spec, err := spec.Resolve()
	if err != nil {
		return spec, err
	}
	if spec.OutcomeTimeout == 0 {
		spec.OutcomeTimeout = m.outcomeLease
	}
	if _, known := m.targets[spec.Target]; spec.Target != "" && !known {
		return spec, fmt.Errorf("dlq: run: %w: target %.80q is not among the configured ones", ErrInvalid, spec.Target)
	}
	if spec.JQ != "" {
		if _, err := compileJQ(spec.JQ); err != nil {
			return spec, err
		}
	}
	return spec, nil
}

// Run returns a run. The error wraps [ErrNotFound] when there is none.
func (m *Manager) Run(ctx context.Context, id string) (*Run, error) { return m.store.Run(ctx, id) }

// Runs returns a page of the runs that the filter picks, newest first unless the page says otherwise, and the next page's cursor.
func (m *Manager) Runs(ctx context.Context, f RunFilter, p Page) ([]Run, string, error) {
	return m.store.Runs(ctx, f, p)
}

// RunItems returns a page of a run's entries and what became of each, by entry id.
func (m *Manager) RunItems(ctx context.Context, id string, f ItemFilter) ([]RunItem, error) {
	return m.store.RunItems(ctx, id, f)
}

// ApproveRun lets a run begin that waits for approval. The error wraps [ErrForbidden] when by.Actor is who asked for the run.
func (m *Manager) ApproveRun(ctx context.Context, id string, by By) (*Run, error) {
	return m.changeRun(ctx, id, ActionRunApprove, by)
}

// RejectRun cancels a run that waits for approval.
func (m *Manager) RejectRun(ctx context.Context, id string, by By) (*Run, error) {
	return m.changeRun(ctx, id, ActionRunReject, by)
}

// PauseRun stops the redriving after the batch under way. What is out goes on, and its outcomes are recorded.
func (m *Manager) PauseRun(ctx context.Context, id string, by By) (*Run, error) {
	return m.changeRun(ctx, id, ActionRunPause, by)
}

// ResumeRun carries a run on that was paused or has stopped by itself. The failure share is counted anew.
func (m *Manager) ResumeRun(ctx context.Context, id string, by By) (*Run, error) {
	return m.changeRun(ctx, id, ActionRunResume, by)
}

// CancelRun ends a run. Its waiting entries stay as they were; what is out goes on.
func (m *Manager) CancelRun(ctx context.Context, id string, by By) (*Run, error) {
	return m.changeRun(ctx, id, ActionRunCancel, by)
}

// RunAdjustment changes a run under way; a nil field changes nothing.
type RunAdjustment struct {
	// Rate and MaxOut are those of [RunSpec].
	Rate   *float64
	MaxOut *int
	Stop   *StopRule
}

// AdjustRun changes the speed and the bounds of a run that has not ended.
func (m *Manager) AdjustRun(ctx context.Context, id string, change RunAdjustment, by By) (*Run, error) {
	return m.changeRunWith(ctx, id, ActionRunAdjust, by, func(r *Run) error {
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
		r.Spec = spec
		return err
	})
}

// WatchRun yields the run now and whenever it has changed, until it has ended and nothing is out, or the context ends. It asks
// the store every so often. The last pair has the error, if any.
func (m *Manager) WatchRun(ctx context.Context, id string, every time.Duration) iter.Seq2[*Run, error] {
	return func(yield func(*Run, error) bool) {
		var last Run
		for {
			run, err := m.store.Run(ctx, id)
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
			if err := wait(ctx, every); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

func (m *Manager) changeRun(ctx context.Context, id string, action Action, by By) (*Run, error) {
	return m.changeRunWith(ctx, id, action, by, func(*Run) error { return nil })
}

// changeRunWith reads, applies and writes by compare-and-set. Who names no version means the run as it is, so a change that is lost to
// another one is tried on what that made of it; the state machine then says whether it still fits.
func (m *Manager) changeRunWith(ctx context.Context, id string, action Action, by By, edit func(*Run) error) (*Run, error) {
	const attempts = 10
	for attempt := 1; ; attempt++ {
		before, err := m.store.Run(ctx, id)
		if err != nil {
			return nil, err
		}
		after, err := before.apply(action, by, time.Now())
		if err == nil {
			err = edit(&after)
		}
		if err != nil {
			return nil, err
		}
		err = m.store.ChangeRun(ctx, &after, AuditRecord{
			At: after.ChangedAt, Actor: by.Actor, Action: action, Note: by.Note, Run: id, Version: after.Version,
			Detail: map[string]string{"from": string(before.State), "to": string(after.State)},
		})
		if errors.Is(err, ErrConflict) && by.Version == 0 && attempt < attempts {
			continue
		}
		if err != nil {
			return nil, err
		}
		m.logger.InfoContext(ctx, "redrive run changed", "run", id, "action", string(action), "from", string(before.State),
			"to", string(after.State), "actor", by.Actor, "note", by.Note)
		m.wakeUp()
		return &after, nil
	}
}

// wakeUp lets Work of this Manager look at once.
func (m *Manager) wakeUp() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// wait waits, or returns the context's error.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
