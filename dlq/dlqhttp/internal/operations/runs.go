package operations

import (
	"context"

	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Preview is what a run would do, as the caller may see it.
func (c *Config) Preview(ctx context.Context, spec redrive.Spec, sample int) (*wire.RunPreview, error) {
	preview, err := c.Runner.PreviewRun(ctx, spec, sample)
	if err != nil {
		return nil, err
	}
	if err := c.Read(ctx, "preview", sampled(preview.Sample)...); err != nil {
		return nil, err
	}
	return new(c.Visible(ctx).Preview(preview)), nil
}

// Review is what a run that waits for approval would send, as the caller may see it.
func (c *Config) Review(ctx context.Context, id string, sample int) (*wire.RunReview, error) {
	review, err := c.Runner.ReviewRun(ctx, id, sample)
	if err != nil {
		return nil, err
	}
	if err := c.Read(ctx, "review", sampled(review.Sample)...); err != nil {
		return nil, err
	}
	return new(c.Visible(ctx).Review(review, c.Manager.Now(ctx))), nil
}

func sampled(samples []redrive.Sample) []int64 {
	ids := make([]int64, len(samples))
	for i := range samples {
		ids[i] = samples[i].Entry.ID
	}
	return ids
}
