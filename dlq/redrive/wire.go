package redrive

import (
	"time"

	"github.com/redrive-go/redrive/dlq/wire"
)

// Shown is the run's JSON form: with its progress at a time.
func (r *Run) Shown(now time.Time) wire.Run {
	shown := r.Run
	shown.Progress = r.Progress(now)
	return shown
}

// Wire is the preview's JSON form.
func (p *Preview) Wire() wire.RunPreview {
	return wire.RunPreview{
		Spec: p.Spec, Count: p.Count, Topics: append([]TopicCount{}, p.Topics...), NeedsApproval: p.NeedsApproval,
		Sample: samplesOf(p.Sample), Destinations: p.Destinations,
	}
}

// Wire is the review's JSON form, with the run's progress at a time.
func (r *Review) Wire(now time.Time) wire.RunReview {
	return wire.RunReview{
		Run: r.Run.Shown(now), Topics: append([]TopicCount{}, r.Topics...), Causes: append([]CauseCount{}, r.Causes...),
		Sample: samplesOf(r.Sample),
	}
}

func samplesOf(samples []Sample) []wire.SampleEntry {
	list := make([]wire.SampleEntry, len(samples))
	for i := range samples {
		s := &samples[i]
		list[i] = wire.SampleEntry{Entry: s.Entry.Detail(), Problem: s.Problem}
		if !s.Diff.Empty() {
			list[i].Diff = &s.Diff
		}
	}
	return list
}
