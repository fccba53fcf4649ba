package dashboard

import (
	"context"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// reviewView is what a second person sees of a run before approving it.
type reviewView struct {
	Total  int64
	Topics []wire.TopicCount
	Causes []wire.CauseCount
	Sample []sampleView
}

// review is what a run that waits for approval would send, as the caller may see it; nil for any other run.
func (d *dashboard) review(ctx context.Context, run *redrive.Run) (*reviewView, error) {
	if run.State != redrive.AwaitingApproval {
		return nil, nil //nolint:nilnil // there is nothing to review
	}
	review, err := d.cfg.Runner.ReviewRun(ctx, run.ID, sampleSize)
	if err != nil {
		return nil, err
	}
	ids := make([]int64, len(review.Sample))
	for i := range review.Sample {
		ids[i] = review.Sample[i].Entry.ID
	}
	if err := d.cfg.Read(ctx, "review", ids...); err != nil {
		return nil, err
	}
	shown := d.cfg.Visible(ctx).Review(review)
	v := &reviewView{Total: run.Counts.Total(), Topics: shown.Topics, Causes: shown.Causes}
	for i := range shown.Sample {
		s := &shown.Sample[i]
		sample := sampleView{Entry: &dlq.Entry{}, Problem: s.Problem, Diff: s.Diff}
		sample.Entry.SetWire(&s.Entry.Entry)
		v.Sample = append(v.Sample, sample)
	}
	return v, nil
}
