package operations

import (
	"cmp"
	"context"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
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
