package dlq

import (
	"fmt"
	"strings"
	"time"
)

// What is done to a run. Their texts stand in the audit log beside the actions on entries.
const (
	ActionRunStart    Action = "run start"
	ActionRunReady    Action = "run ready"
	ActionRunApprove  Action = "run approve"
	ActionRunReject   Action = "run reject"
	ActionRunPause    Action = "run pause"
	ActionRunResume   Action = "run resume"
	ActionRunCancel   Action = "run cancel"
	ActionRunStop     Action = "run stop"
	ActionRunComplete Action = "run complete"
	ActionRunAdjust   Action = "run adjust"
)

// RunConflictError is the answer to the one whose change of a run came second, or does not fit its state.
type RunConflictError struct {
	// ID is the run and Action what was asked of it.
	ID     string
	Action Action
	// State and Version are the run's, now; By and At say who brought it there, and when.
	State   RunState
	Version int64
	By      string
	At      time.Time
}

// Error says what was asked, what the run is, and who made it so.
func (e *RunConflictError) Error() string {
	return fmt.Sprintf("dlq: %s: cannot %s: it is %s since %s (version %d), by %s", e.ID, e.Action, e.State,
		e.At.UTC().Format(time.RFC3339), e.Version, e.By)
}

// Is makes errors.Is(err, ErrConflict) true.
func (e *RunConflictError) Is(target error) bool { return target == ErrConflict }

// apply is the state machine of runs: the run as it is after the action. It touches nothing.
func (r Run) apply(action Action, by By, at time.Time) (Run, error) {
	if by.Actor == "" {
		return r, fmt.Errorf("%w: %s without an actor: say who does it", ErrInvalid, action)
	}
	if by.Version != 0 && by.Version != r.Version || !r.legal(action) {
		return r, &RunConflictError{
			ID: "run " + r.ID, Action: action, State: r.State, Version: r.Version, By: r.ChangedBy, At: r.ChangedAt,
		}
	}
	at = at.UTC().Truncate(time.Microsecond)
	switch action {
	case ActionRunReady:
		r.ready(at)
	case ActionRunApprove:
		if strings.EqualFold(strings.TrimSpace(by.Actor), strings.TrimSpace(r.CreatedBy)) {
			return r, fmt.Errorf("dlq: run %s: %w: %s has asked for it, so somebody else has to approve it", r.ID, ErrForbidden, r.CreatedBy)
		}
		r.ApprovedBy, r.ApprovedAt = by.Actor, at
		r.ready(at)
	case ActionRunPause:
		r.State, r.Cause = RunPaused, by.Note
	case ActionRunResume:
		r.run(at)
	case ActionRunStop:
		r.State, r.Cause = RunStopped, by.Note
	case ActionRunComplete:
		r.State, r.Cause, r.FinishedAt = RunCompleted, "", at
	case ActionRunCancel, ActionRunReject:
		r.State, r.Cause, r.FinishedAt = RunCancelled, by.Note, at
	default: // ActionRunAdjust changes the spec alone
	}
	r.Version++
	r.ChangedAt, r.ChangedBy = at, by.Actor
	return r, nil
}

// ready brings a run whose set is frozen to where it goes on.
func (r *Run) ready(at time.Time) {
	r.NeedsApproval = r.needsApproval()
	switch {
	case r.Counts.Total() == 0:
		r.State, r.Cause, r.FinishedAt = RunCompleted, "no entry matched when it started", at
	case r.NeedsApproval && r.ApprovedBy == "":
		r.State = RunAwaitingApproval
	case r.Spec.Paused:
		r.State = RunPaused
	default:
		r.run(at)
	}
}

// needsApproval reports whether a second person has to look at the run: for its size, or because it does more than send messages
// back to where they came from.
func (r *Run) needsApproval() bool {
	return r.ApprovalAbove >= 0 && (r.Counts.Total() > r.ApprovalAbove || r.Spec.JQ != "" || r.Spec.Target != "")
}

func (r *Run) run(at time.Time) {
	r.State, r.Cause = RunRunning, ""
	r.ResumedAt, r.Baseline = at, r.Counts
	if r.StartedAt.IsZero() {
		r.StartedAt = at
	}
}

func (r *Run) legal(action Action) bool {
	switch action {
	case ActionRunReady:
		return r.State == RunPreparing
	case ActionRunApprove, ActionRunReject:
		return r.State == RunAwaitingApproval
	case ActionRunPause, ActionRunStop, ActionRunComplete:
		return r.State == RunRunning
	case ActionRunResume:
		return r.State == RunPaused || r.State == RunStopped
	case ActionRunCancel, ActionRunAdjust:
		return !r.State.Ended()
	default:
		return false
	}
}
