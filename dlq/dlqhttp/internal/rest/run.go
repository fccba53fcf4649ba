package rest

import (
	"context"
	"time"

	"github.com/redrive-go/redrive/dlq"
)

// RunSpec is what a redrive run is to do.
type RunSpec struct {
	ID                    string   `json:"id,omitempty" pattern:"^[A-Za-z0-9_.-]{1,64}$" doc:"Makes starting idempotent: a second run with it is refused. Defaults to a new UUID."`
	Filter                Filter   `json:"filter" doc:"Which entries. Statuses default to PENDING; RESOLVED and DISCARDED ones are restored first."`
	Limit                 int64    `json:"limit,omitempty" minimum:"0" doc:"At most so many, the oldest first; 0 takes all."`
	Rate                  float64  `json:"rate,omitempty" minimum:"0" doc:"Messages a second at most; 0 is as fast as it goes."`
	MaxOut                int      `json:"max_out,omitempty" doc:"At most so many are out without an outcome. Defaults to 10,000; negative is no bound."`
	Canary                []int    `json:"canary,omitempty" nullable:"false" maxItems:"100" doc:"Sizes of first steps, each of which waits for its outcomes: 1, 10, 100."`
	Stop                  StopRule `json:"stop,omitzero" doc:"When it stops by itself."`
	JQ                    string   `json:"jq,omitempty" maxLength:"10000" doc:"A jq expression that each payload goes through; the original is kept."`
	Target                string   `json:"target,omitempty" doc:"The name of another destination than where the messages came from."`
	CloseOnPublish        bool     `json:"close_on_publish,omitempty" doc:"The broker's confirm is outcome enough."`
	OutcomeTimeoutSeconds float64  `json:"outcome_timeout_seconds,omitempty" minimum:"0" maximum:"31536000" doc:"How long an outcome may take."`
	Paused                bool     `json:"paused,omitempty" doc:"Make the run but do not begin."`
}

// StopRule says how many failures are too many.
type StopRule struct {
	Share     float64 `json:"share,omitempty" minimum:"0" maximum:"1" doc:"The share of failures above which the run stops. Defaults to 0.1; 1 never stops."`
	MinSample int     `json:"min_sample,omitempty" minimum:"0" doc:"How many outcomes are needed to judge. Defaults to 20."`
}

// spec is what the manager runs, over these entries.
func (s *RunSpec) spec(over dlq.Filter) dlq.RunSpec {
	return dlq.RunSpec{
		ID: s.ID, Filter: over, Limit: s.Limit, Rate: s.Rate, MaxOut: s.MaxOut, Canary: s.Canary, Stop: dlq.StopRule(s.Stop),
		JQ: s.JQ, Target: s.Target, CloseOnPublish: s.CloseOnPublish, Paused: s.Paused,
		OutcomeTimeout: time.Duration(s.OutcomeTimeoutSeconds * float64(time.Second)),
	}
}

func specOf(s *dlq.RunSpec) RunSpec {
	return RunSpec{
		ID: s.ID, Filter: filterOf(&s.Filter), Limit: s.Limit, Rate: s.Rate, MaxOut: s.MaxOut, Canary: s.Canary, Stop: StopRule(s.Stop),
		JQ: s.JQ, Target: s.Target, CloseOnPublish: s.CloseOnPublish, Paused: s.Paused, OutcomeTimeoutSeconds: s.OutcomeTimeout.Seconds(),
	}
}

// RunCounts are the entries of a run by what became of them.
type RunCounts struct {
	Waiting   int64 `json:"waiting" doc:"Not touched yet."`
	Claimed   int64 `json:"claimed" doc:"Being published."`
	Out       int64 `json:"out" doc:"Taken by the broker; the consumer's outcome is awaited."`
	Succeeded int64 `json:"succeeded"`
	Failed    int64 `json:"failed" doc:"Died again."`
	Lost      int64 `json:"lost" doc:"No outcome came in time."`
	Skipped   int64 `json:"skipped" doc:"Left alone; the item says why."`
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
	Cause         string    `json:"cause,omitempty" doc:"Why it stopped by itself, or was rejected."`
	Version       int64     `json:"version" doc:"Counts the changes of the state, not progress; the ETag."`
	Spec          RunSpec   `json:"spec"`
	Note          string    `json:"note,omitempty"`
	CreatedAt     time.Time `json:"created_at"`
	CreatedBy     string    `json:"created_by"`
	ChangedAt     time.Time `json:"changed_at"`
	ChangedBy     string    `json:"changed_by"`
	ApprovalAbove int64     `json:"approval_above" doc:"How many entries a run may have without approval; negative is any number."`
	NeedsApproval bool      `json:"needs_approval,omitempty"`
	ApprovedBy    string    `json:"approved_by,omitempty"`
	ApprovedAt    time.Time `json:"approved_at,omitzero"`
	StartedAt     time.Time `json:"started_at,omitzero"`
	FinishedAt    time.Time `json:"finished_at,omitzero"`
	ResumedAt     time.Time `json:"resumed_at,omitzero"`
	Baseline      RunCounts `json:"baseline" doc:"The counts at the last start or resume."`
	Counts        RunCounts `json:"counts"`
	Holder        string    `json:"holder,omitempty" doc:"The process that carries it on."`
	LeaseUntil    time.Time `json:"lease_until,omitzero"`
	FrozenTo      int64     `json:"frozen_to"`
	FreezeTo      int64     `json:"freeze_to"`
	Progress      Progress  `json:"progress"`
}

// runOf shows what may be shown of a run.
func (a *API) runOf(ctx context.Context, r *dlq.Run) Run {
	r = a.visible(ctx).Run(r)
	p := r.Progress(time.Now())
	return Run{
		ID: r.ID, State: string(r.State), Cause: r.Cause, Version: r.Version, Spec: specOf(&r.Spec), Note: r.Note,
		CreatedAt: r.CreatedAt, CreatedBy: r.CreatedBy, ChangedAt: r.ChangedAt, ChangedBy: r.ChangedBy, ApprovalAbove: r.ApprovalAbove,
		NeedsApproval: r.NeedsApproval, ApprovedBy: r.ApprovedBy, ApprovedAt: r.ApprovedAt, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt,
		ResumedAt: r.ResumedAt, Baseline: RunCounts(r.Baseline), Counts: RunCounts(r.Counts), Holder: r.Holder, LeaseUntil: r.LeaseUntil,
		FrozenTo: r.FrozenTo, FreezeTo: r.FreezeTo, Progress: Progress{
			Total: p.Total, Done: p.Done, Share: p.Share, Rate: p.Rate, LeftSeconds: p.Left.Seconds(), FailureShare: p.FailureShare,
		},
	}
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

// RunPreview is what a run would do. Nothing is changed.
type RunPreview struct {
	Spec          RunSpec       `json:"spec" doc:"Its defaults filled in."`
	Count         int64         `json:"count" doc:"How many it would take now."`
	Topics        []TopicCount  `json:"topics" nullable:"false" doc:"Split by topic, before the limit."`
	NeedsApproval bool          `json:"needs_approval" doc:"A second person would have to approve it."`
	Sample        []SampleEntry `json:"sample" nullable:"false"`
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
	Diff    *Diff       `json:"diff,omitempty" doc:"What the jq expression makes of it."`
}

func (a *API) runPreviewOf(ctx context.Context, p *dlq.RunPreview) RunPreview {
	rules := a.visible(ctx)
	shown := RunPreview{Spec: specOf(&p.Spec), Count: p.Count, Topics: []TopicCount{}, NeedsApproval: p.NeedsApproval, Sample: []SampleEntry{}}
	for _, t := range p.Topics {
		shown.Topics = append(shown.Topics, TopicCount(t))
	}
	for i := range p.Sample {
		s := &p.Sample[i]
		e := rules.Entry(&s.Entry)
		sample := SampleEntry{Entry: EntryDetail{Entry: entryOf(e), Body: bodyOf(e.Body)}, Problem: rules.Text(s.Problem)}
		if !s.Diff.Empty() { // an expression is for those only who may see everything
			diff := diffOf(s.Diff)
			sample.Diff = &diff
		}
		shown.Sample = append(shown.Sample, sample)
	}
	return shown
}
