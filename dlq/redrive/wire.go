package redrive

import (
	"time"

	"github.com/redrive-go/redrive/dlq/wire"
)

// Wire is the spec's JSON form.
func (s *Spec) Wire() wire.RunSpec {
	return wire.RunSpec{
		ID: s.ID, Filter: s.Filter.Wire(), Limit: s.Limit, Rate: s.Rate, MaxOut: s.MaxOut, Canary: s.Canary, Stop: wire.StopRule(s.Stop),
		JQ: s.JQ, Target: s.Target, CloseOnPublish: s.CloseOnPublish, OutcomeTimeoutSeconds: s.OutcomeTimeout.Seconds(), Paused: s.Paused,
	}
}

// SetWire makes the spec what its JSON form says. The error wraps [ErrInvalid] for a filter that cannot be read.
func (s *Spec) SetWire(w *wire.RunSpec) error {
	*s = Spec{
		ID: w.ID, Limit: w.Limit, Rate: w.Rate, MaxOut: w.MaxOut, Canary: w.Canary, Stop: StopRule(w.Stop), JQ: w.JQ, Target: w.Target,
		CloseOnPublish: w.CloseOnPublish, OutcomeTimeout: time.Duration(w.OutcomeTimeoutSeconds * float64(time.Second)), Paused: w.Paused,
	}
	return s.Filter.SetWire(&w.Filter)
}

// Wire is the run's JSON form, with its progress at a time.
func (r *Run) Wire(now time.Time) wire.Run {
	p := r.Progress(now)
	return wire.Run{
		ID: r.ID, State: string(r.State), Cause: r.Cause, Version: r.Version, Spec: r.Spec.Wire(), Note: r.Note,
		CreatedAt: r.CreatedAt, CreatedBy: r.CreatedBy, ChangedAt: r.ChangedAt, ChangedBy: r.ChangedBy, ApprovalAbove: r.ApprovalAbove,
		ApprovalWindowSeconds: r.ApprovalWindow.Seconds(), NeedsApproval: r.NeedsApproval, ApprovedBy: r.ApprovedBy,
		ApprovedAt: r.ApprovedAt, StartedAt: r.StartedAt, FinishedAt: r.FinishedAt, ResumedAt: r.ResumedAt,
		Baseline: wire.RunCounts(r.Baseline), Counts: wire.RunCounts(r.Counts), Holder: r.Holder,
		LeaseUntil: r.LeaseUntil, FrozenTo: r.FrozenTo, FreezeTo: r.FreezeTo, Progress: wire.Progress{
			Total: p.Total, Done: p.Done, Share: p.Share, Rate: p.Rate, LeftSeconds: p.Left.Seconds(), FailureShare: p.FailureShare,
		},
	}
}

// SetWire makes the run what its JSON form says, without the progress, which follows from the rest.
func (r *Run) SetWire(w *wire.Run) error {
	*r = Run{
		ID: w.ID, State: State(w.State), Cause: w.Cause, Version: w.Version, Note: w.Note, CreatedAt: w.CreatedAt, CreatedBy: w.CreatedBy,
		ChangedAt: w.ChangedAt, ChangedBy: w.ChangedBy, ApprovalAbove: w.ApprovalAbove, NeedsApproval: w.NeedsApproval, ApprovedBy: w.ApprovedBy,
		ApprovalWindow: time.Duration(w.ApprovalWindowSeconds * float64(time.Second)),
		ApprovedAt:     w.ApprovedAt, StartedAt: w.StartedAt, FinishedAt: w.FinishedAt, ResumedAt: w.ResumedAt, Baseline: Counts(w.Baseline),
		Counts: Counts(w.Counts), Holder: w.Holder, LeaseUntil: w.LeaseUntil, FrozenTo: w.FrozenTo, FreezeTo: w.FreezeTo,
	}
	return r.Spec.SetWire(&w.Spec)
}

// Wire is the item's JSON form, without its entry.
func (i *Item) Wire() wire.RunItem {
	return wire.RunItem{
		EntryID: i.EntryID, State: string(i.State), Detail: i.Detail, Version: i.Version, Revision: i.Revision, Redrive: i.Redrive,
		ClaimedUntil: i.ClaimedUntil, SettledAt: i.SettledAt,
	}
}

// SetWire makes the item what its JSON form says.
func (i *Item) SetWire(w *wire.RunItem) {
	*i = Item{
		EntryID: w.EntryID, State: ItemState(w.State), Detail: w.Detail, Version: w.Version, Revision: w.Revision, Redrive: w.Redrive,
		ClaimedUntil: w.ClaimedUntil, SettledAt: w.SettledAt,
	}
}

// Wire is the preview's JSON form.
func (p *Preview) Wire() wire.RunPreview {
	w := wire.RunPreview{Spec: p.Spec.Wire(), Count: p.Count, Topics: []wire.TopicCount{}, NeedsApproval: p.NeedsApproval, Sample: []wire.SampleEntry{}}
	for _, t := range p.Topics {
		w.Topics = append(w.Topics, wire.TopicCount(t))
	}
	for i := range p.Sample {
		w.Sample = append(w.Sample, p.Sample[i].Wire())
	}
	return w
}

// Wire is the sample's JSON form.
func (s *Sample) Wire() wire.SampleEntry {
	w := wire.SampleEntry{Entry: s.Entry.Detail(), Problem: s.Problem}
	if !s.Diff.Empty() {
		diff := s.Diff.Wire()
		w.Diff = &diff
	}
	return w
}

// Wire is the review's JSON form, with the run's progress at a time.
func (r *Review) Wire(now time.Time) wire.RunReview {
	w := wire.RunReview{Run: r.Run.Wire(now), Topics: []wire.TopicCount{}, Causes: []wire.CauseCount{}, Sample: []wire.SampleEntry{}}
	for _, t := range r.Topics {
		w.Topics = append(w.Topics, wire.TopicCount(t))
	}
	for _, c := range r.Causes {
		w.Causes = append(w.Causes, wire.CauseCount(c))
	}
	for i := range r.Sample {
		w.Sample = append(w.Sample, r.Sample[i].Wire())
	}
	return w
}

// SetWire makes the preview what its JSON form says.
func (p *Preview) SetWire(w *wire.RunPreview) error {
	*p = Preview{Count: w.Count, NeedsApproval: w.NeedsApproval}
	for _, t := range w.Topics {
		p.Topics = append(p.Topics, TopicCount(t))
	}
	for i := range w.Sample {
		s := Sample{Problem: w.Sample[i].Problem}
		if err := s.Entry.SetDetail(&w.Sample[i].Entry); err != nil {
			return err
		}
		if w.Sample[i].Diff != nil {
			s.Diff.SetWire(w.Sample[i].Diff)
		}
		p.Sample = append(p.Sample, s)
	}
	return p.Spec.SetWire(&w.Spec)
}
