package operations

import (
	"context"

	"github.com/redrive-go/redrive/dlq"
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

// EditAndRedrive saves an edit and redrives the entry. A caller that may not send has changed nothing. An error that
// comes with an entry means that the edit is saved, and its message not sent.
func (c *Config) EditAndRedrive(ctx context.Context, id int64, edit dlq.Edit, by dlq.By) (*dlq.Entry, error) {
	if err := c.Manager.MaySend(ctx, id, by); err != nil {
		return nil, err
	}
	revised, _, err := c.Manager.Edit(ctx, id, edit, by)
	if err != nil {
		return nil, err
	}
	by.Version = revised.Version
	sent, err := c.Manager.Redrive(ctx, id, by)
	if err != nil {
		return revised, err
	}
	return sent, nil
}
