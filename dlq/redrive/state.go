package redrive

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Actions on a run, as they appear in the audit log alongside the actions on entries.
const (
	ActionStart    driver.Action = "run start"
	ActionReady    driver.Action = "run ready"
	ActionApprove  driver.Action = "run approve"
	ActionReject   driver.Action = "run reject"
	ActionPause    driver.Action = "run pause"
	ActionResume   driver.Action = "run resume"
	ActionCancel   driver.Action = "run cancel"
	ActionStop     driver.Action = "run stop"
	ActionComplete driver.Action = "run complete"
	// ActionCanary is a step of the canary that was judged and passed.
	ActionCanary driver.Action = "run canary"
	ActionAdjust driver.Action = "run adjust"
)

// check reports why the action does not fit the run's state.
func (r *Run) check(action driver.Action, by dlq.By) error {
	if by.Actor == "" {
		return fmt.Errorf("%w: %s without an actor: say who does it", dlq.ErrInvalid, action)
	}
	if by.Version != 0 && by.Version != r.Version || !r.legal(action) {
		return &ConflictError{
			Run: r.ID, Action: action, Status: string(r.State), Version: r.Version, By: r.ChangedBy, At: r.ChangedAt,
		}
	}
	return nil
}

// apply is the state machine of runs: it returns the run after the action and has no side effects.
func (r Run) apply(action driver.Action, by dlq.By, at time.Time) (Run, error) {
	if err := r.check(action, by); err != nil {
		return r, err
	}
	at = at.UTC().Truncate(time.Microsecond)
	switch action {
	case ActionReady:
		r.ready(at)
	case ActionApprove:
		if driver.Person(by.Actor) == driver.Person(r.CreatedBy) {
			return r, fmt.Errorf("dlq: run %s: %w: %s started it, so someone else must approve it", r.ID, ErrForbidden,
				r.CreatedBy)
		}
		r.ApprovedBy, r.ApprovedAt = by.Actor, at
		r.ready(at)
	case ActionPause:
		r.State, r.Cause = Paused, by.Note
	case ActionResume:
		r.Abandoned = 0
		if r.State == Stopped && r.StartedAt.IsZero() {
			r.State, r.Cause = Preparing, "" // it stopped before its set was frozen and approved
			break
		}
		r.run(at)
	case ActionStop:
		r.State, r.Cause = Stopped, by.Note
	case ActionCanary:
		r.ResumedAt, r.Baseline = at, r.Counts
	case ActionComplete:
		r.State, r.Cause, r.FinishedAt = Completed, "", at
	case ActionCancel, ActionReject:
		r.State, r.Cause, r.FinishedAt = Cancelled, by.Note, at
	default: // ActionAdjust changes only the spec
	}
	r.Version++
	r.ChangedAt, r.ChangedBy = at, by.Actor
	return r, nil
}

// ready moves a run whose set is frozen to its next state.
func (r *Run) ready(at time.Time) {
	r.NeedsApproval = r.NeedsApproval || r.needsApproval()
	switch {
	case r.Counts.Total() == 0:
		r.State, r.Cause, r.FinishedAt = Completed, "no entry matched when it started", at
	case r.NeedsApproval && r.ApprovedBy == "":
		r.State = AwaitingApproval
	case r.Spec.Paused:
		r.State = Paused
	default:
		r.run(at)
	}
}

// needsApproval reports whether a second person has to approve the run: because of its size, or because it does more
// than send messages back to where they came from.
func (r *Run) needsApproval() bool {
	return r.ApprovalAbove >= 0 && (r.Counts.Total() > r.ApprovalAbove || r.Spec.JQ != "" || r.Spec.Target != "")
}

func (r *Run) run(at time.Time) {
	r.State, r.Cause = Running, ""
	r.ResumedAt, r.Baseline = at, r.Counts
	if r.StartedAt.IsZero() {
		r.StartedAt = at
	}
}

func (r *Run) legal(action driver.Action) bool {
	switch action {
	case ActionReady:
		return r.State == Preparing
	case ActionApprove, ActionReject:
		return r.State == AwaitingApproval
	case ActionStop:
		return r.State == Running || r.State == Preparing
	case ActionPause, ActionComplete, ActionCanary:
		return r.State == Running
	case ActionResume:
		return r.State == Paused || r.State == Stopped
	case ActionCancel:
		return !r.State.Ended()
	case ActionAdjust: // not while it waits for approval, so that the approved run is the reviewed one
		return !r.State.Ended() && r.State != AwaitingApproval
	default:
		return false
	}
}
