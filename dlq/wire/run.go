package wire

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
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

// Pausing reports whether a run is paused as soon as its set is frozen.
func (r *Run) Pausing() bool { return r.State == Preparing && r.Spec.Paused }

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
	Sample int `query:"sample" minimum:"1" maximum:"100" default:"10" doc:"How many entries to show, fewer if they are large."`
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

// NotEdited begins the detail of an item that was skipped because the run's jq expression failed. The error follows and
// may quote the payload.
const NotEdited = "not edited: "

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

	Unreachable string `json:"unreachable,omitempty" doc:"Why a redrive to it would fail now, if that is known."`

	EveryGroup bool `json:"every_group,omitempty" doc:"It is the topic: every group that reads it gets the messages."`
}

// Warning reports that a redrive would fail, and that every group gets the messages or that no consumer reads the
// destination. It is empty if one does, or if that is not known.
func (d *RunDestination) Warning() string {
	var warnings []string
	if d.Unreachable != "" {
		warnings = append(warnings, d.Unreachable)
	}
	switch {
	case d.EveryGroup:
		warnings = append(warnings, fmt.Sprintf(
			"it goes to topic %s: every group that reads it gets it, not only the one that failed", d.Topic))
	case d.Readers == 0:
		warnings = append(warnings, fmt.Sprintf("no consumer reads %s of %s now: start %s, or redriven messages wait there",
			cmp.Or(d.RedriveTo, d.Topic), cmp.Or(d.Consumer, d.Topic), cmp.Or(d.Consumer, "its consumer")))
	}
	return strings.Join(warnings, "; ")
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
	Problem string      `json:"problem,omitempty" doc:"Why the jq expression has no result: a run would skip it."`
	Diff    *Diff       `json:"diff,omitempty" doc:"What the jq expression changes."`

	Unevaluated bool `json:"unevaluated,omitempty" doc:"The problem is the evaluator's: a run would not skip it, but try again."`
}

// Trouble is the problem, and what a run would do about it.
func (s *SampleEntry) Trouble() string {
	if s.Unevaluated {
		return "Could not be evaluated; a run would try again: " + s.Problem
	}
	return "Would be skipped: " + s.Problem
}

// RunSpec specifies a redrive run. The zero value of everything but Filter is a careful default.
type RunSpec struct {
	ID string `json:"id,omitempty" pattern:"^[A-Za-z0-9_.-]{1,64}$" doc:"Makes starting idempotent: a second run with this id is refused. Defaults to a new UUID."`
	// Filter selects the entries, for example by group (Fingerprint), or by IDs. PARKED entries are only included when
	// Statuses names them.
	Filter Filter  `json:"filter" doc:"Which entries. Statuses default to PENDING; RESOLVED and DISCARDED entries must be restored first."`
	Limit  int64   `json:"limit,omitempty" minimum:"0" doc:"Maximum number of entries, the oldest first; 0 means all."`
	Rate   float64 `json:"rate,omitempty" minimum:"0" doc:"Maximum number of messages per second; 0 means no limit."`
	// MaxOut makes a stop come before everything is sent.
	MaxOut int `json:"max_out,omitempty" doc:"Maximum number of messages without an outcome. Defaults to 10,000; negative means no limit."`
	// Canary stops the run when the share of failures of a complete step exceeds Stop.Share, no matter how small the step:
	// Stop.MinSample only applies to outcomes before the step's end. Each step is judged by its own outcomes.
	Canary []int         `json:"canary,omitempty" nullable:"false" maxItems:"100" doc:"Sizes of first steps, each of which waits for its outcomes: 1, 10, 100."`
	Stop   StopCondition `json:"stop,omitzero" doc:"When it stops automatically."`
	// JQ skips payloads that are not JSON, or for which it fails. Try it with a preview first.
	JQ     string `json:"jq,omitempty" maxLength:"10000" doc:"A jq expression that edits each payload; the original is kept."`
	Target string `json:"target,omitempty" doc:"The name of another destination. Defaults to where the messages came from."`
	// CloseOnPublish is for consumers that do not report their outcome, such as those of other systems. It is always set
	// with a Target: a message that dies there is a new entry.
	CloseOnPublish bool    `json:"close_on_publish,omitempty" doc:"Close an entry when the broker confirms its message."`
	OutcomeTimeout Seconds `json:"outcome_timeout_seconds,omitempty" minimum:"0" maximum:"31536000" doc:"How long an outcome may take."`
	Paused         bool    `json:"paused,omitempty" doc:"Create the run without starting it."`
}

// StopCondition is how many failures are too many. A message without an outcome in time counts as a failure.
type StopCondition struct {
	Share     float64 `json:"share,omitempty" minimum:"0" maximum:"1" doc:"The share of failures above which the run stops. Defaults to 0.1; 1 never stops."`
	MinSample int     `json:"min_sample,omitempty" minimum:"0" doc:"How many outcomes are needed to judge. Defaults to 20."`
}

const (
	defaultMaxOut    = 10_000
	defaultStopShare = 0.1
	defaultMinSample = 20
	maxRunIDs        = 100_000
)

var runID = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// Resolve fills in the defaults, and reports every fault as [ErrInvalid].
func (s RunSpec) Resolve() (RunSpec, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.ID != "" && !runID.MatchString(s.ID) {
		bad("id %.80q: 1 to 64 letters, digits, '-', '_' or '.'", s.ID)
	}
	errs = append(errs, s.Filter.Validate())
	if len(s.Filter.IDs) > maxRunIDs {
		bad("%d ids in the filter: at most %d, use its other fields", len(s.Filter.IDs), maxRunIDs)
	}
	s.Filter.Statuses = slices.Clone(s.Filter.Statuses)
	if len(s.Filter.Statuses) == 0 {
		s.Filter.Statuses = []Status{Pending}
	}
	for _, status := range s.Filter.Statuses {
		if status == Resolved || status == Discarded {
			bad("%s entries cannot be redriven: restore them first", status)
		}
	}
	if s.Limit < 0 || s.Rate < 0 || s.Rate != s.Rate || s.OutcomeTimeout < 0 {
		bad("limit %d, rate %v, outcome timeout %s: must not be negative", s.Limit, s.Rate, s.OutcomeTimeout.Duration())
	}
	s.MaxOut = cmp.Or(s.MaxOut, defaultMaxOut)
	for _, step := range s.Canary {
		if step < 1 {
			bad("canary step %d: must be positive", step)
		}
	}
	s.Stop.Share = cmp.Or(s.Stop.Share, defaultStopShare)
	s.Stop.MinSample = cmp.Or(s.Stop.MinSample, defaultMinSample)
	if !(s.Stop.Share > 0 && s.Stop.Share <= 1) {
		bad("stop share %v: above 0 and at most 1", s.Stop.Share)
	}
	if s.Stop.MinSample < 0 {
		bad("stop sample %d: must be positive", s.Stop.MinSample)
	}
	s.CloseOnPublish = s.CloseOnPublish || s.Target != ""
	if err := errors.Join(errs...); err != nil {
		return s, fmt.Errorf("dlq: run: %w: %w", ErrInvalid, err)
	}
	return s, nil
}
