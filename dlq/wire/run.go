package wire

import (
	"cmp"
	"fmt"
	"time"
)

// RunCounts are the entries of a run by their outcome.
type RunCounts struct {
	Waiting   int64 `json:"waiting" doc:"Not claimed yet."`
	Claimed   int64 `json:"claimed" doc:"Being published."`
	Out       int64 `json:"out" doc:"Confirmed by the broker; waiting for the consumer's outcome."`
	Succeeded int64 `json:"succeeded"`
	Failed    int64 `json:"failed" doc:"Died again."`
	Lost      int64 `json:"lost" doc:"Without an outcome in time."`
	Skipped   int64 `json:"skipped" doc:"Not redriven; the item has the reason."`
}

// Total is the number of entries in the run.
func (c RunCounts) Total() int64 { return c.Waiting + c.Started() + c.Skipped }

// Started is how many were claimed.
func (c RunCounts) Started() int64 { return c.Claimed + c.Out + c.Outcomes() }

// Outcomes is how many have their outcome.
func (c RunCounts) Outcomes() int64 { return c.Succeeded + c.Failed + c.Lost }

// Done is how many are settled, one way or the other.
func (c RunCounts) Done() int64 { return c.Outcomes() + c.Skipped }

// Open is how many are in flight.
func (c RunCounts) Open() int64 { return c.Claimed + c.Out }

// Of is the count of the state.
func (c RunCounts) Of(s ItemState) int64 { return *c.at(s) }

// Add adds n to the count of a state.
func (c *RunCounts) Add(s ItemState, n int64) { *c.at(s) += n }

// at points to the count of a state. An unknown one has a zero that is not kept.
func (c *RunCounts) at(s ItemState) *int64 {
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
		return new(int64)
	}
}

// ItemState is what happened to an entry of a run; see [RunCounts].
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

// RunState is the state of a run.
type RunState string

// The states of a run, in the order of its life.
const (
	// Preparing freezes the set.
	Preparing RunState = "preparing"
	// AwaitingApproval waits for a second person.
	AwaitingApproval RunState = "awaiting_approval"
	// Running redrives.
	Running RunState = "running"
	// Paused was paused by a person. The outcomes of outstanding messages are still recorded.
	Paused RunState = "paused"
	// Stopped has stopped automatically, for Run.Cause: too many failures, or the broker accepts nothing. It can be
	// resumed.
	Stopped RunState = "stopped"
	// Completed has an outcome for every entry.
	Completed RunState = "completed"
	// Cancelled was cancelled or rejected. Its waiting entries stay as they were.
	Cancelled RunState = "cancelled"
)

// Ended reports whether nothing more will be redriven.
func (s RunState) Ended() bool { return s == Completed || s == Cancelled }

// Progress is how far a run is, for a progress bar.
type Progress struct {
	Total        int64   `json:"total"`
	Done         int64   `json:"done"`
	Share        float64 `json:"share" doc:"From 0 to 1."`
	Rate         float64 `json:"rate" doc:"Outcomes per second since the run was started or resumed; 0 if unknown."`
	Left         Seconds `json:"left_seconds" doc:"How long the rest takes at this rate; 0 if unknown."`
	FailureShare float64 `json:"failure_share" doc:"The share of failures among the outcomes since then, from 0 to 1."`
}

// Run is a redrive run: one bulk redrive as a resource that anyone can start, watch, pause, resume and cancel from any
// process. Its entries are frozen when it starts: what dies later is not included, and what someone else has changed
// since is skipped and reported.
type Run struct {
	ID        string    `json:"id"`
	State     RunState  `json:"state" enum:"preparing,awaiting_approval,running,paused,stopped,completed,cancelled"`
	Cause     string    `json:"cause,omitempty" doc:"Why it stopped automatically, or was rejected."`
	Version   int64     `json:"version" doc:"Counts the changes of the state, not progress; the ETag."`
	Spec      RunSpec   `json:"spec"`
	Note      string    `json:"note,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
	ChangedAt time.Time `json:"changed_at"`
	ChangedBy string    `json:"changed_by"`
	// ApprovalAbove and ApprovalWindow are as configured where the run was started. NeedsApproval follows from them once
	// the set is frozen.
	ApprovalAbove  int64     `json:"approval_above" doc:"How many messages its creator may send alone; negative means any number."`
	ApprovalWindow Seconds   `json:"approval_window_seconds,omitempty"`
	NeedsApproval  bool      `json:"needs_approval,omitempty"`
	ApprovedBy     string    `json:"approved_by,omitempty"`
	ApprovedAt     time.Time `json:"approved_at,omitzero"`
	StartedAt      time.Time `json:"started_at,omitzero"`
	FinishedAt     time.Time `json:"finished_at,omitzero"`
	// ResumedAt and Baseline are the start of what the rate and the failure share cover, so that a resumed run is not
	// stopped again because of its past.
	ResumedAt time.Time `json:"resumed_at,omitzero"`
	Baseline  RunCounts `json:"baseline" doc:"The counts at the last start or resume."`
	Counts    RunCounts `json:"counts"`
	// Holder drives the run until LeaseUntil, unless it renews.
	Holder     string    `json:"holder,omitempty" doc:"The process that drives it."`
	LeaseUntil time.Time `json:"lease_until,omitzero"`
	// FrozenTo is the last entry that the freezing has looked at, FreezeTo the last that it will look at.
	FrozenTo int64 `json:"frozen_to"`
	FreezeTo int64 `json:"freeze_to"`
	// Progress is set where a run is shown.
	Progress Progress `json:"progress"`
}

// RunFilter selects runs; zero fields do not filter.
type RunFilter struct {
	States    []RunState `query:"state" nullable:"false" enum:"preparing,awaiting_approval,running,paused,stopped,completed,cancelled" doc:"Runs in any of these."`
	CreatedBy string     `query:"created_by"`
	// Active selects runs with work left: they prepare, run, or have outstanding messages.
	Active bool `query:"active" doc:"Only runs with work left."`
}

// ItemFilter selects the entries of a run.
type ItemFilter struct {
	State ItemState `query:"state" enum:"waiting,claimed,out,succeeded,failed,lost,skipped"`
	After int64     `query:"after" minimum:"0" doc:"Continue after this entry."`
	Limit int       `query:"limit" minimum:"1" maximum:"1000" default:"50" doc:"Maximum number."`
}

// ReviewQuery is how many entries of a run to review.
type ReviewQuery struct {
	Sample int `query:"sample" minimum:"1" maximum:"100" default:"10" doc:"How many entries to show."`
}

// RunList is a page of runs.
type RunList struct {
	Runs []Run  `json:"runs" nullable:"false"`
	Next string `json:"next,omitempty" doc:"The cursor of the next page; absent on the last."`
}

// RunItem is one entry of a run.
type RunItem struct {
	EntryID int64     `json:"entry_id"`
	State   ItemState `json:"state" enum:"waiting,claimed,out,succeeded,failed,lost,skipped"`
	Detail  string    `json:"detail,omitempty" doc:"Why it was skipped, or how it died again."`
	// Version is the entry's when the set was frozen or the run last changed the entry: with another version the entry is
	// no longer the run's.
	Version int64 `json:"version"`
	// Revision is the body that the run found.
	Revision int `json:"revision"`
	Redrive  int `json:"redrive,omitempty" doc:"The number of the run's redrive of it."`
	// ClaimedUntil is when a publish in flight is considered lost. SettledAt is when the outcome was recorded.
	ClaimedUntil time.Time `json:"claimed_until,omitzero"`
	SettledAt    time.Time `json:"settled_at,omitzero"`
}

// ItemList is a page of a run's entries, by their id.
type ItemList struct {
	Items []RunItem `json:"items" nullable:"false"`
	Next  int64     `json:"next,omitempty" doc:"The after of the next page; absent on the last."`
}

// RunPreview is what a run would do. Nothing is changed.
type RunPreview struct {
	Spec          RunSpec       `json:"spec" doc:"The specification with its defaults."`
	Count         int64         `json:"count" doc:"How many entries it would redrive now."`
	Topics        []TopicCount  `json:"topics" nullable:"false" doc:"The entries by topic, before the limit."`
	NeedsApproval bool          `json:"needs_approval" doc:"A second person would have to approve it."`
	Sample        []SampleEntry `json:"sample" nullable:"false"`

	Destinations []RunDestination `json:"destinations,omitempty" doc:"Where the messages of the sample would go, and their readers."`
}

// RunDestination is where messages of a run go.
type RunDestination struct {
	Broker    string `json:"broker,omitempty" doc:"The name of the broker if a collector found it there, else its scheme."`
	Topic     string `json:"topic"`
	Consumer  string `json:"consumer,omitempty"`
	RedriveTo string `json:"redrive_to,omitempty"`
	Readers   int    `json:"readers" doc:"How many consumers read it now; -1 if unknown."`
}

// Warning reports that no consumer reads the destination; it is empty if one does, or if that is not known.
func (d *RunDestination) Warning() string {
	if d.Readers != 0 {
		return ""
	}
	return fmt.Sprintf("no consumer reads %s of %s now: start %s, or what is redriven waits there",
		cmp.Or(d.RedriveTo, d.Topic), cmp.Or(d.Consumer, d.Topic), cmp.Or(d.Consumer, "its consumer"))
}

// RunReview is what a second person looks at before approving a run.
type RunReview struct {
	Run    Run           `json:"run" doc:"With its author's note."`
	Topics []TopicCount  `json:"topics" nullable:"false"`
	Causes []CauseCount  `json:"causes" nullable:"false" doc:"The most frequent ones, at most 20."`
	Sample []SampleEntry `json:"sample" nullable:"false" doc:"The first entries; diff is from what died to what would be sent."`
}

// CauseCount is how many entries of a run have a cause.
type CauseCount struct {
	Fingerprint string `json:"fingerprint"`
	Cause       string `json:"cause"`
	Handler     string `json:"handler,omitempty"`
	ErrorClass  string `json:"error_class,omitempty"`
	Count       int64  `json:"count"`
}

// TopicCount is how many entries a topic has.
type TopicCount struct {
	Topic string `json:"topic"`
	Count int64  `json:"count"`
}

// SampleEntry is an entry of a preview.
type SampleEntry struct {
	Entry   EntryDetail `json:"entry"`
	Problem string      `json:"problem,omitempty" doc:"Why it would be skipped."`
	Diff    *Diff       `json:"diff,omitempty" doc:"What the jq expression changes."`
}
