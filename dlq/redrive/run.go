package redrive

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Run is a redrive run. Any working process can drive it (see [Runner.Work]): when that process dies, another one takes
// over.
type Run struct {
	wire.Run

	// Abandoned is how many holders in a row let their lease expire without sending anything: processes that died or hung.
	// At [MaxAbandoned] the run stops. AbandonedAt is how many entries were unsent when the last of them was gone.
	Abandoned   int   `json:"abandoned,omitzero"`
	AbandonedAt int64 `json:"abandoned_at,omitzero"`
	// StoppedAt is when it last stopped; later changes leave it.
	StoppedAt time.Time `json:"stopped_at,omitzero"`
}

// The parts of a [Run].
type (
	// Spec specifies a run.
	Spec = wire.RunSpec
	// StopCondition is how many failures are too many.
	StopCondition = wire.StopCondition
	// State is the state of a run.
	State = wire.RunState
	// Counts are the entries of a run by state.
	Counts = wire.RunCounts
	// Progress is how far a run is.
	Progress = wire.Progress
	// ItemState is what happened to an entry of a run.
	ItemState = wire.ItemState
	// RunFilter selects runs.
	RunFilter = wire.RunFilter
	// ItemFilter selects the items of a run.
	ItemFilter = wire.ItemFilter
	// TopicCount is the number of entries of a topic.
	TopicCount = wire.TopicCount
	// CauseCount is how many entries have a cause.
	CauseCount = wire.CauseCount
	// ConflictError is the error of a change to a run that came second, or does not fit its state.
	ConflictError = wire.Conflict
)

// The states of a run, in the order of its life.
const (
	Preparing        = wire.Preparing
	AwaitingApproval = wire.AwaitingApproval
	Running          = wire.Running
	Paused           = wire.Paused
	Stopped          = wire.Stopped
	Completed        = wire.Completed
	Cancelled        = wire.Cancelled
)

// States lists every state in the order of a run's life.
func States() []State {
	return []State{
		Preparing, AwaitingApproval, Running, Paused, Stopped, Completed, Cancelled,
	}
}

// Progress returns the run's progress at a time.
func (r *Run) Progress(now time.Time) Progress {
	p := Progress{Total: r.Counts.Total(), Done: r.Counts.Done(), FailureShare: r.failureShare()}
	if p.Total > 0 {
		p.Share = float64(p.Done) / float64(p.Total)
	}
	if r.State.Ended() {
		now = r.FinishedAt
	}
	if seconds := now.Sub(r.ResumedAt).Seconds(); !r.ResumedAt.IsZero() && seconds > 0 {
		p.Rate = float64(p.Done-r.Baseline.Done()) / seconds
	}
	if p.Rate > 0 && r.State == Running {
		p.Left = wire.SecondsOf(float64(p.Total-p.Done) / p.Rate)
	}
	return p
}

// failureShare is the share of failures among the outcomes since the baseline. A message without an outcome counts as a
// failure.
func (r *Run) failureShare() float64 {
	outcomes := r.outcomes()
	if outcomes <= 0 {
		return 0
	}
	return float64(outcomes-(r.Counts.Succeeded-r.Baseline.Succeeded)) / float64(outcomes)
}

// MaxAbandoned is how many holders in a row a run may lose without progress, so that a run which kills every process
// that drives it ends.
const MaxAbandoned = 2

// Lease gives the run to a holder until at+lease, or ends its lease when lease is 0. The error wraps [ErrLeaseLost]
// while another holder has it. A [Store] calls it on a row that it has locked, so that all stores agree.
func (r *Run) Lease(holder string, at time.Time, lease time.Duration) error {
	if r.Holder != holder && r.LeaseUntil.After(at) {
		return fmt.Errorf("%w: %s until %s", ErrLeaseLost, r.Holder, r.LeaseUntil.Format(time.RFC3339))
	}
	if r.Holder != "" && r.Holder != holder {
		left := r.Counts.Waiting + r.Counts.Claimed + r.FreezeTo - r.FrozenTo
		if left != r.AbandonedAt {
			r.Abandoned = 0 // there was progress since the last one was lost
		}
		if r.AbandonedAt = left; left > 0 {
			r.Abandoned++
		}
	}
	r.Holder, r.LeaseUntil = holder, at.Add(lease).UTC().Truncate(time.Microsecond)
	if lease == 0 {
		r.Holder, r.LeaseUntil = "", time.Time{}
	}
	return nil
}

// Item is one entry of a run.
type Item struct {
	wire.RunItem

	// Entry is the entry with its body, in results of [Store.NextItems]. Nil in listings.
	Entry *dlq.Entry
}

// The states of an item, in the order of its life.
const (
	ItemWaiting   = wire.ItemWaiting
	ItemClaimed   = wire.ItemClaimed
	ItemOut       = wire.ItemOut
	ItemSucceeded = wire.ItemSucceeded
	ItemFailed    = wire.ItemFailed
	ItemLost      = wire.ItemLost
	ItemSkipped   = wire.ItemSkipped
)

// ItemStates lists every state of an item.
func ItemStates() []ItemState {
	return []ItemState{ItemWaiting, ItemClaimed, ItemOut, ItemSucceeded, ItemFailed, ItemLost, ItemSkipped}
}

// Settle returns what happened to an item that is claimed or out, given its entry, which is nil when it was purged. It
// has no side effects; a [Store] calls it, so that all stores agree.
//
// The entry is enough: a success sets SucceededAt, which a redrive clears, a death the number of the redrive that it
// belongs to. So any process finds an outcome at any time: recorded while no process drove the run, or imported from
// the spool a day later.
func (i *Item) Settle(e *dlq.Entry, at time.Time) (state ItemState, detail string) {
	switch {
	case e == nil:
		return ItemLost, "the entry was purged before its outcome was known"
	case e.RedriveCount == i.Redrive && !e.SucceededAt.IsZero():
		return ItemSucceeded, ""
	case e.DeathRedrive >= i.Redrive:
		return ItemFailed, e.ErrorMessage
	case e.Status != dlq.Retrying || e.RedriveCount != i.Redrive:
		return ItemLost, "its outcome is not known: " + string(e.Status) + " by " + e.ChangedBy
	case i.State == ItemClaimed && !at.Before(i.ClaimedUntil):
		// The process died between claim and publish, or between publish and record, and there has been no outcome since:
		// send it again.
		return ItemWaiting, ""
	case i.State == ItemOut && e.Overdue(at):
		return ItemLost, "no outcome came in time"
	default:
		return i.State, i.Detail
	}
}

// Refused returns what happened to a waiting item whose claim failed with err, as [Item.Settle] does. It is skipped,
// unless the run had sent it before: an outcome that arrives after the claim expired still belongs to the run.
func (i *Item) Refused(e *dlq.Entry, at time.Time, err error) (state ItemState, detail string) {
	if i.Redrive > 0 && e != nil {
		if state, detail = i.Settle(e, at); state == ItemSucceeded || state == ItemFailed {
			return state, detail
		}
	}
	return ItemSkipped, err.Error()
}

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
		return fmt.Errorf("%w: %s without an actor: name the person who does it", dlq.ErrInvalid, action)
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
		r.Cause = by.Note
		if r.Spec.Paused = r.State == Preparing; !r.Spec.Paused { // one that is prepared is paused once its set is frozen
			r.State = Paused
		}
	case ActionResume:
		r.Abandoned, r.Spec.Paused = 0, false
		if r.State != Paused && r.StartedAt.IsZero() {
			r.State, r.Cause = Preparing, "" // its set is not frozen or not approved yet
			break
		}
		r.run(at)
	case ActionStop:
		r.State, r.Cause, r.StoppedAt = Stopped, by.Note, at
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
	case ActionPause:
		return r.State == Running || r.State == Preparing && !r.Pausing()
	case ActionComplete, ActionCanary:
		return r.State == Running
	case ActionResume:
		return r.State == Paused || r.State == Stopped || r.Pausing()
	case ActionCancel:
		return !r.State.Ended()
	case ActionAdjust: // not while it waits for approval, so that the approved run is the reviewed one
		return !r.State.Ended() && r.State != AwaitingApproval
	default:
		return false
	}
}
