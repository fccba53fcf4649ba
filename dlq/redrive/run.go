package redrive

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Run is a redrive run: one bulk redrive as a resource that anyone can start, watch, pause, resume and cancel from any
// process. Its entries are frozen when it starts: what dies later is not included, and what someone else has changed
// since is skipped and reported. Any working process can drive a run (see [Runner.Work]): when that process dies,
// another one takes over.
type Run struct {
	// ID is a UUIDv7, or the caller's Spec.ID.
	ID string `json:"id"`
	// Spec is the request, with its defaults filled in.
	Spec Spec `json:"spec"`
	// State is the run's state. Cause explains why it stopped automatically, or was rejected.
	State State  `json:"state"`
	Cause string `json:"cause,omitzero"`
	// Version counts the changes of the state from 1, for compare-and-set. Progress does not count.
	Version int64 `json:"version"`
	// CreatedAt, CreatedBy and Note are the request; ChangedAt and ChangedBy the last change of the state.
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
	Note      string    `json:"note,omitzero"`
	ChangedAt time.Time `json:"changed_at"`
	ChangedBy string    `json:"changed_by"`
	// ApprovalAbove is how many messages its creator may send alone within ApprovalWindow, as configured where the run was
	// started; negative means any number. NeedsApproval follows from it once the set is frozen; ApprovedBy is who
	// approved, ApprovedAt when.
	ApprovalAbove  int64         `json:"approval_above"`
	ApprovalWindow time.Duration `json:"approval_window,omitzero"`
	NeedsApproval  bool          `json:"needs_approval,omitzero"`
	ApprovedBy     string        `json:"approved_by,omitzero"`
	ApprovedAt     time.Time     `json:"approved_at,omitzero"`
	// StartedAt is when it first ran, FinishedAt when it was completed or cancelled.
	StartedAt  time.Time `json:"started_at,omitzero"`
	FinishedAt time.Time `json:"finished_at,omitzero"`
	// ResumedAt and Baseline are the time and the counts at the last start or resume: the rate and the failure share only
	// cover what came after, so that a resumed run is not stopped again because of its past.
	ResumedAt time.Time `json:"resumed_at,omitzero"`
	Baseline  Counts    `json:"baseline,omitzero"`
	// Counts are the entries by state.
	Counts Counts `json:"counts"`
	// Holder is the process that drives the run, until LeaseUntil unless it renews.
	Holder     string    `json:"holder,omitzero"`
	LeaseUntil time.Time `json:"lease_until,omitzero"`
	// Abandoned is how many holders in a row let their lease expire without sending anything: processes that died or hung.
	// At [MaxAbandoned] the run stops. AbandonedAt is how many entries were unsent when the last of them was gone.
	Abandoned   int   `json:"abandoned,omitzero"`
	AbandonedAt int64 `json:"abandoned_at,omitzero"`
	// FrozenTo is the last entry that the freezing has looked at, FreezeTo the last that it will look at: newer ones are
	// not included.
	FrozenTo int64 `json:"frozen_to"`
	FreezeTo int64 `json:"freeze_to"`
}

// State is the state of a run.
type State string

const (
	// Preparing freezes the set.
	Preparing State = "preparing"
	// AwaitingApproval waits for a second person.
	AwaitingApproval State = "awaiting_approval"
	// Running redrives.
	Running State = "running"
	// Paused was paused by a person. The outcomes of outstanding messages are still recorded.
	Paused State = "paused"
	// Stopped has stopped automatically, for Run.Cause: too many failures, or the broker accepts nothing. It can be
	// resumed.
	Stopped State = "stopped"
	// Completed has an outcome for every entry.
	Completed State = "completed"
	// Cancelled was cancelled or rejected. Its waiting entries stay as they were.
	Cancelled State = "cancelled"
)

// States lists every state in the order of a run's life.
func States() []State {
	return []State{
		Preparing, AwaitingApproval, Running, Paused, Stopped, Completed, Cancelled,
	}
}

// Ended reports whether nothing more will be redriven.
func (s State) Ended() bool { return s == Completed || s == Cancelled }

// Counts are the entries of a run by state.
type Counts wire.RunCounts

// Total is the number of entries in the run.
func (c Counts) Total() int64 { return c.Waiting + c.Started() + c.Skipped }

// Started is how many were claimed.
func (c Counts) Started() int64 { return c.Claimed + c.Out + c.Outcomes() }

// Outcomes is how many have their outcome.
func (c Counts) Outcomes() int64 { return c.Succeeded + c.Failed + c.Lost }

// Done is how many are settled, one way or the other.
func (c Counts) Done() int64 { return c.Outcomes() + c.Skipped }

// Open is how many are in flight.
func (c Counts) Open() int64 { return c.Claimed + c.Out }

// Of is the count of the state.
func (c Counts) Of(s ItemState) int64 {
	if n := c.at(s); n != nil {
		return *n
	}
	return 0
}

// Add adds n to the count of a state.
func (c *Counts) Add(s ItemState, n int64) {
	if to := c.at(s); to != nil {
		*to += n
	}
}

// at points to the count of a state; nil for an unknown one.
func (c *Counts) at(s ItemState) *int64 {
	switch s {
	case ItemWaiting:
		return &c.Waiting
	case ItemClaimed:
		return &c.Claimed
	case ItemOut:
		return &c.Out
	case ItemSucceeded:
		return &c.Succeeded
	case ItemFailed:
		return &c.Failed
	case ItemLost:
		return &c.Lost
	case ItemSkipped:
		return &c.Skipped
	default:
		return nil
	}
}

// Progress is how far a run is, for a progress bar.
type Progress struct {
	// Total, Done and Share (from 0 to 1) count entries.
	Total, Done int64
	Share       float64
	// Rate is outcomes per second since the run was last started or resumed; 0 if unknown.
	Rate float64
	// Left is how long the rest takes at this rate; 0 if unknown.
	Left time.Duration
	// FailureShare is the share of failures in the outcomes since then, from 0 to 1.
	FailureShare float64
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
		p.Left = time.Duration(float64(p.Total-p.Done) / p.Rate * float64(time.Second))
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
	EntryID int64 `json:"entry_id"`
	// State is what happened to it; Detail explains why it was skipped, or how it died again.
	State  ItemState `json:"state"`
	Detail string    `json:"detail,omitzero"`
	// Version is the entry's when the set was frozen or the run last changed the entry: with another version the entry is
	// no longer ours.
	Version int64 `json:"version"`
	// Revision is the body that the run found.
	Revision int `json:"revision"`
	// Redrive is the number of the run's redrive of it; 0 before.
	Redrive int `json:"redrive,omitzero"`
	// ClaimedUntil is when a publish in flight is considered lost. SettledAt is when the outcome was recorded.
	ClaimedUntil time.Time `json:"claimed_until,omitzero"`
	SettledAt    time.Time `json:"settled_at,omitzero"`
	// Entry is the entry with its body, in results of [Store.NextItems]. Nil in listings.
	Entry *dlq.Entry `json:"-"`
}

// ItemState is what happened to an entry of a run; see [Counts].
type ItemState string

// The states of an item, in the order of its life.
const (
	ItemWaiting   ItemState = "waiting"
	ItemClaimed   ItemState = "claimed"
	ItemOut       ItemState = "out"
	ItemSucceeded ItemState = "succeeded"
	ItemFailed    ItemState = "failed"
	ItemLost      ItemState = "lost"
	ItemSkipped   ItemState = "skipped"
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
