package redrive

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq"
)

// Run is a redrive run: one bulk redrive as a resource that is started, watched, paused, resumed and cancelled, by
// anyone and from any process. The entries that it takes are frozen when it starts; what dies later is not taken, and
// what somebody else has changed since is left alone and reported. A run is carried on by whichever process works (see
// [Runner.Work]): when that dies, another one takes over.
type Run struct {
	// ID is a UUIDv7, or what the caller chose in Spec.ID.
	ID string `json:"id"`
	// Spec is the request, its defaults filled in.
	Spec Spec `json:"spec"`
	// State is where the run is. Cause explains why it stopped on its own, or was rejected.
	State State  `json:"state"`
	Cause string `json:"cause,omitzero"`
	// Version counts the changes of the state from 1 and is what compare-and-set compares. Progress does not count.
	Version int64 `json:"version"`
	// CreatedAt, CreatedBy and Note are the request; ChangedAt and ChangedBy the last change of the state.
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
	Note      string    `json:"note,omitzero"`
	ChangedAt time.Time `json:"changed_at"`
	ChangedBy string    `json:"changed_by"`
	// ApprovalAbove is how many messages its creator may send alone within ApprovalWindow, as it was configured where
	// the run was started; negative is any number. NeedsApproval is what follows from it once the set is frozen;
	// ApprovedBy is who approved, ApprovedAt when.
	ApprovalAbove  int64         `json:"approval_above"`
	ApprovalWindow time.Duration `json:"approval_window,omitzero"`
	NeedsApproval  bool          `json:"needs_approval,omitzero"`
	ApprovedBy     string        `json:"approved_by,omitzero"`
	ApprovedAt     time.Time     `json:"approved_at,omitzero"`
	// StartedAt is when it first ran, FinishedAt when it was completed or cancelled.
	StartedAt  time.Time `json:"started_at,omitzero"`
	FinishedAt time.Time `json:"finished_at,omitzero"`
	// ResumedAt and Baseline are the time and the counts at the last start or resume: the rate and the failure share
	// are of what came after, so that a run that was stopped and resumed is not stopped again by its past.
	ResumedAt time.Time `json:"resumed_at,omitzero"`
	Baseline  Counts    `json:"baseline,omitzero"`
	// Counts are the entries by what happened to them.
	Counts Counts `json:"counts"`
	// Holder is the process that carries the run on, until LeaseUntil unless it renews.
	Holder     string    `json:"holder,omitzero"`
	LeaseUntil time.Time `json:"lease_until,omitzero"`
	// Abandoned is how many holders in a row let their lease run out with nothing sent: processes that died, or hung.
	// At [MaxAbandoned] the run stops. AbandonedAt is how many entries were not sent when the last of them had gone.
	Abandoned   int   `json:"abandoned,omitzero"`
	AbandonedAt int64 `json:"abandoned_at,omitzero"`
	// FrozenTo is the last entry that the freezing has looked at, FreezeTo the last that it will look at: newer ones
	// are not taken.
	FrozenTo int64 `json:"frozen_to"`
	FreezeTo int64 `json:"freeze_to"`
}

// State is where a run is in its life.
type State string

const (
	// Preparing freezes the set.
	Preparing State = "preparing"
	// AwaitingApproval waits for a second person.
	AwaitingApproval State = "awaiting_approval"
	// Running redrives.
	Running State = "running"
	// Paused was paused by a person. The outcomes of what is out are still recorded.
	Paused State = "paused"
	// Stopped has stopped on its own, for Run.Cause: too many failures, or the broker takes nothing. It can be resumed.
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

// Counts are the entries of a run by what happened to them.
type Counts struct {
	// Waiting have not been touched. In a run that was cancelled they never will be.
	Waiting int64 `json:"waiting"`
	// Claimed are being published. Out were taken by the broker; their consumer's outcome is awaited.
	Claimed int64 `json:"claimed"`
	Out     int64 `json:"out"`
	// Succeeded were handled by their consumer, or published where the spec says that this is enough.
	Succeeded int64 `json:"succeeded"`
	// Failed died again.
	Failed int64 `json:"failed"`
	// Lost were published, and no outcome came within the spec's OutcomeTimeout. A late one still closes the entry.
	Lost int64 `json:"lost"`
	// Skipped were left alone: somebody else was faster, the payload could not be edited, or the broker refused the
	// message. Item.Detail names it.
	Skipped int64 `json:"skipped"`
}

// Total is how many entries the run has.
func (c Counts) Total() int64 { return c.Waiting + c.Started() + c.Skipped }

// Started is how many were claimed at least.
func (c Counts) Started() int64 { return c.Claimed + c.Out + c.Outcomes() }

// Outcomes is how many have their outcome.
func (c Counts) Outcomes() int64 { return c.Succeeded + c.Failed + c.Lost }

// Done is how many are settled, one way or the other.
func (c Counts) Done() int64 { return c.Outcomes() + c.Skipped }

// Open is how many are in flight.
func (c Counts) Open() int64 { return c.Claimed + c.Out }

// Of is how many are in the state.
func (c Counts) Of(s ItemState) int64 {
	if n := c.at(s); n != nil {
		return *n
	}
	return 0
}

// Add adds n to the number of a state.
func (c *Counts) Add(s ItemState, n int64) {
	if to := c.at(s); to != nil {
		*to += n
	}
}

// at is the number of a state; nil for one that there is not.
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
	// Total, Done and Share (from 0 to 1) are of the entries.
	Total, Done int64
	Share       float64
	// Rate is outcomes per second since the run was started or resumed last; 0 when it is not known.
	Rate float64
	// Left is how long the rest takes at this rate; 0 when it is not known.
	Left time.Duration
	// FailureShare is how many of the outcomes since then are failures, from 0 to 1.
	FailureShare float64
}

// Progress reports how far the run is at a time.
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

// failureShare is the share of failures among the outcomes since the baseline. A message whose outcome never came is
// not a success.
func (r *Run) failureShare() float64 {
	outcomes := r.outcomes()
	if outcomes <= 0 {
		return 0
	}
	return float64(outcomes-(r.Counts.Succeeded-r.Baseline.Succeeded)) / float64(outcomes)
}

// MaxAbandoned is how many holders in a row a run may lose without progress: what kills each process that carries it on
// ends there.
const MaxAbandoned = 2

// Lease gives the run to a holder until at+lease, or takes it from it when lease is 0. The error wraps [ErrLeaseLost]
// while another one has it. A [Store] calls it on the row that it holds locked, so that all stores agree.
func (r *Run) Lease(holder string, at time.Time, lease time.Duration) error {
	if r.Holder != holder && r.LeaseUntil.After(at) {
		return fmt.Errorf("%w: %s until %s", ErrLeaseLost, r.Holder, r.LeaseUntil.Format(time.RFC3339))
	}
	if r.Holder != "" && r.Holder != holder {
		left := r.Counts.Waiting + r.Counts.Claimed + r.FreezeTo - r.FrozenTo
		if left != r.AbandonedAt {
			r.Abandoned = 0 // something was done since the last one was lost
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
	// Version is the entry's, when the set was frozen or the run last changed the entry: an entry with another one is
	// not ours.
	Version int64 `json:"version"`
	// Revision is the body that the run found.
	Revision int `json:"revision"`
	// Redrive is the number of the redrive that the run made of it; 0 before.
	Redrive int `json:"redrive,omitzero"`
	// ClaimedUntil is when a publish in flight is treated as lost. SettledAt is when the outcome was recorded.
	ClaimedUntil time.Time `json:"claimed_until,omitzero"`
	SettledAt    time.Time `json:"settled_at,omitzero"`
	// Entry is the entry with its body, in what [Store.NextItems] returns. Nil in listings.
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

// Settle reports what happened to an item that is claimed or out, from its entry, which is nil when it was purged. It
// touches nothing; a [Store] calls it, so that all stores agree.
//
// The entry alone tells: a success sets SucceededAt, a death the number of the redrive that it belongs to. So an
// outcome is found recorded by any process at any time: while no process drove the run, or from the spool a day later.
func (i *Item) Settle(e *dlq.Entry, at time.Time) (state ItemState, detail string) {
	switch {
	case e == nil:
		return ItemLost, "the entry was purged before its outcome was known"
	case e.RedriveCount == i.Redrive && !e.SucceededAt.IsZero() &&
		(e.Status == dlq.Resolved || !e.SucceededAt.Before(e.LastRedriveAt)):
		return ItemSucceeded, "" // the times alone would not do: they are of two machines' clocks
	case e.DeathRedrive >= i.Redrive:
		return ItemFailed, e.ErrorMessage
	case e.Status != dlq.Retrying || e.RedriveCount != i.Redrive:
		return ItemLost, "its outcome is not known: " + string(e.Status) + " by " + e.ChangedBy
	case i.State == ItemClaimed && !at.Before(i.ClaimedUntil):
		// The process died between claim and publish, or between publish and record. No outcome came since: do it
		// again.
		return ItemWaiting, ""
	case i.State == ItemOut && e.Overdue(at):
		return ItemLost, "no outcome came in time"
	default:
		return i.State, i.Detail
	}
}

// Refused reports what happened to a waiting item whose claim has failed with err, as [Item.Settle] does. It is
// skipped, unless the run had sent it before: an outcome that comes when the claim has run out is still the run's own.
func (i *Item) Refused(e *dlq.Entry, at time.Time, err error) (state ItemState, detail string) {
	if i.Redrive > 0 && e != nil {
		if state, detail = i.Settle(e, at); state == ItemSucceeded || state == ItemFailed {
			return state, detail
		}
	}
	return ItemSkipped, err.Error()
}
