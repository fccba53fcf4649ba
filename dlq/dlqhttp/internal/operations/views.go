package operations

import (
	"cmp"
	"context"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Groups are causes as the caller may see them, and whether there are more.
func (c *Config) Groups(ctx context.Context, q dlq.GroupQuery) (groups []driver.Group, more bool, err error) {
	wide, shown := c.Visible(ctx).Causes(q)
	groups, more, err = c.Manager.ListGroups(ctx, wide)
	if err != nil {
		return nil, false, err
	}
	groups = shown(groups)
	limit := cmp.Or(q.Limit, driver.DefaultGroups)
	return groups[:min(limit, len(groups))], more || len(groups) > limit, nil
}

// Stats are the statistics as the caller may see them.
func (c *Config) Stats(ctx context.Context, q dlq.StatsQuery) (*wire.Stats, error) {
	stats, err := c.Manager.Stats(ctx, q)
	if err != nil {
		return nil, err
	}
	view := c.Visible(ctx)
	shown := view.Stats(&stats)
	if view.Hides() {
		shown.TopCauses, _, err = c.Groups(ctx, dlq.GroupQuery{Status: dlq.Pending, Limit: q.TopCauses})
	}
	return &shown, err
}

// Recurrence is a report as the caller may see it.
func (c *Config) Recurrence(ctx context.Context, period time.Duration) (*dlq.Recurrence, error) {
	_, shown := c.Visible(ctx).Causes(dlq.GroupQuery{})
	return c.Manager.Recurrence(ctx, dlq.RecurrenceQuery{Period: period, Shown: shown})
}

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
