package wire

import (
	"cmp"
	"fmt"
	"time"
)

// RunSpec specifies a redrive run.
type RunSpec struct {
	ID                    string        `json:"id,omitempty" pattern:"^[A-Za-z0-9_.-]{1,64}$" doc:"Makes starting idempotent: a second run with it is refused. Defaults to a new UUID."`
	Filter                Filter        `json:"filter" doc:"Which entries. Statuses default to PENDING; RESOLVED and DISCARDED ones are restored first."`
	Limit                 int64         `json:"limit,omitempty" minimum:"0" doc:"At most so many, the oldest first; 0 takes all."`
	Rate                  float64       `json:"rate,omitempty" minimum:"0" doc:"Messages a second at most; 0 is as fast as possible."`
	MaxOut                int           `json:"max_out,omitempty" doc:"At most so many are out without an outcome. Defaults to 10,000; negative for no bound."`
	Canary                []int         `json:"canary,omitempty" nullable:"false" maxItems:"100" doc:"Sizes of first steps, each of which waits for its outcomes: 1, 10, 100."`
	Stop                  StopCondition `json:"stop,omitzero" doc:"When it stops on its own."`
	JQ                    string        `json:"jq,omitempty" maxLength:"10000" doc:"A jq expression that each payload goes through; the original is kept."`
	Target                string        `json:"target,omitempty" doc:"The name of another destination than where the messages came from."`
	CloseOnPublish        bool          `json:"close_on_publish,omitempty" doc:"The broker's confirm is outcome enough."`
	OutcomeTimeoutSeconds float64       `json:"outcome_timeout_seconds,omitempty" minimum:"0" maximum:"31536000" doc:"How long an outcome may take."`
	Paused                bool          `json:"paused,omitempty" doc:"Make the run but do not begin."`
}

// StopCondition is how many failures are too many.
type StopCondition struct {
	Share     float64 `json:"share,omitempty" minimum:"0" maximum:"1" doc:"The share of failures above which the run stops. Defaults to 0.1; 1 never stops."`
	MinSample int     `json:"min_sample,omitempty" minimum:"0" doc:"How many outcomes are needed to judge. Defaults to 20."`
}

// RunCounts are the entries of a run by their outcome.
type RunCounts struct {
	Waiting   int64 `json:"waiting" doc:"Not touched yet."`
	Claimed   int64 `json:"claimed" doc:"Being published."`
	Out       int64 `json:"out" doc:"Taken by the broker; the consumer's outcome is awaited."`
	Succeeded int64 `json:"succeeded"`
	Failed    int64 `json:"failed" doc:"Died again."`
	Lost      int64 `json:"lost" doc:"No outcome came in time."`
	Skipped   int64 `json:"skipped" doc:"Left alone; the item has the reason."`
}

// Progress is how far a run is.
type Progress struct {
	Total        int64   `json:"total"`
	Done         int64   `json:"done"`
	Share        float64 `json:"share" doc:"From 0 to 1."`
	Rate         float64 `json:"rate" doc:"Outcomes a second since the run was started or resumed; 0 when it is not known."`
	LeftSeconds  float64 `json:"left_seconds" doc:"How long the rest takes at this rate; 0 when it is not known."`
	FailureShare float64 `json:"failure_share" doc:"How many of the outcomes since then are failures, from 0 to 1."`
}

// Run is a redrive run.
type Run struct {
	ID            string    `json:"id"`
	State         string    `json:"state" enum:"preparing,awaiting_approval,running,paused,stopped,completed,cancelled"`
	Cause         string    `json:"cause,omitempty" doc:"Why it stopped on its own, or was rejected."`
	Version       int64     `json:"version" doc:"Counts the changes of the state, not progress; the ETag."`
	Spec          RunSpec   `json:"spec"`
	Note          string    `json:"note,omitempty"`
	CreatedAt     time.Time `json:"created_at"`
	CreatedBy     string    `json:"created_by"`
	ChangedAt     time.Time `json:"changed_at"`
	ChangedBy     string    `json:"changed_by"`
	ApprovalAbove int64     `json:"approval_above" doc:"How many messages its creator may send alone; negative is any number."`
	// ApprovalWindowSeconds is the window.
	ApprovalWindowSeconds float64   `json:"approval_window_seconds,omitempty"`
	NeedsApproval         bool      `json:"needs_approval,omitempty"`
	ApprovedBy            string    `json:"approved_by,omitempty"`
	ApprovedAt            time.Time `json:"approved_at,omitzero"`
	StartedAt             time.Time `json:"started_at,omitzero"`
	FinishedAt            time.Time `json:"finished_at,omitzero"`
	ResumedAt             time.Time `json:"resumed_at,omitzero"`
	Baseline              RunCounts `json:"baseline" doc:"The counts at the last start or resume."`
	Counts                RunCounts `json:"counts"`
	Holder                string    `json:"holder,omitempty" doc:"The process that carries it on."`
	LeaseUntil            time.Time `json:"lease_until,omitzero"`
	FrozenTo              int64     `json:"frozen_to"`
	FreezeTo              int64     `json:"freeze_to"`
	Progress              Progress  `json:"progress"`
}

// RunList is a page of runs.
type RunList struct {
	Runs []Run  `json:"runs" nullable:"false"`
	Next string `json:"next,omitempty" doc:"The cursor of the next page; absent on the last."`
}

// RunItem is one entry of a run.
type RunItem struct {
	EntryID      int64     `json:"entry_id"`
	State        string    `json:"state" enum:"waiting,claimed,out,succeeded,failed,lost,skipped"`
	Detail       string    `json:"detail,omitempty" doc:"Why it was skipped, or how it died again."`
	Version      int64     `json:"version"`
	Revision     int       `json:"revision"`
	Redrive      int       `json:"redrive,omitempty" doc:"The number of the redrive that the run made of it."`
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
	Spec          RunSpec       `json:"spec" doc:"Its defaults filled in."`
	Count         int64         `json:"count" doc:"How many it would take now."`
	Topics        []TopicCount  `json:"topics" nullable:"false" doc:"Split by topic, before the limit."`
	NeedsApproval bool          `json:"needs_approval" doc:"A second person would have to approve it."`
	Sample        []SampleEntry `json:"sample" nullable:"false"`

	Destinations []RunDestination `json:"destinations,omitempty" doc:"Where the sample goes, and who reads there."`
}

// RunDestination is where messages of a run go.
type RunDestination struct {
	Broker    string `json:"broker,omitempty" doc:"Its name where it was collected from, else its scheme."`
	Topic     string `json:"topic"`
	Consumer  string `json:"consumer,omitempty"`
	RedriveTo string `json:"redrive_to,omitempty"`
	Readers   int    `json:"readers" doc:"How many consumers read it now; -1 where that is not known."`
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
	Run    Run           `json:"run" doc:"With the note of its author."`
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
	Diff    *Diff       `json:"diff,omitempty" doc:"The difference that the jq expression makes."`
}
