package redrive

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq"
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
		p.Left = wire.Seconds(float64(p.Total-p.Done) / p.Rate * float64(time.Second))
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
// The entry is enough: a success sets SucceededAt, a death the number of the redrive that it belongs to. So any process
// finds an outcome at any time: recorded while no process drove the run, or imported from the spool a day later.
func (i *Item) Settle(e *dlq.Entry, at time.Time) (state ItemState, detail string) {
	switch {
	case e == nil:
		return ItemLost, "the entry was purged before its outcome was known"
	case e.RedriveCount == i.Redrive && !e.SucceededAt.IsZero() &&
		(e.Status == dlq.Resolved || !e.SucceededAt.Before(e.LastRedriveAt)):
		return ItemSucceeded, "" // times alone are not enough: they are from two clocks
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
