package dlq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// defaultRecurrencePeriod is how long a report looks back; it compares with the same time before that.
const defaultRecurrencePeriod = 7 * 24 * time.Hour

// A cause is growing when its count rises by half, and by enough not to be an accident.
const (
	growthShare = 1.5
	growthLeast = 5
)

// RecurrenceQuery selects a [Recurrence].
type RecurrenceQuery struct {
	// Period is how long the report looks back; it is compared with the same time before. Whole hours. Defaults to
	// 7 days.
	Period time.Duration
	// Now is the end of the period. Defaults to the time of the call. The whole hour that it is in counts.
	Now time.Time
	// Retention is the store's retention. With less than two periods, purged entries are missing in the previous
	// period, and no cause is reported as growing or returning; with less than one, none as gone.
	Retention Retention
	// Shown, unless nil, changes the causes before they are compared, for a caller to whom some look the same.
	Shown func([]driver.Group) []driver.Group
}

// How the causes of dead letters have changed; see package wire.
type (
	// Recurrence describes how the causes have changed since the previous period: which are new, growing, back, or gone.
	// It is computed from the maintained statistics of the causes.
	Recurrence = wire.Recurrence
	// RecurringCause is a cause in a [Recurrence].
	RecurringCause = wire.RecurringCause
)

// Recurrence compares the causes of the last period with those of the previous one. The error wraps [ErrInvalid] for a
// period that is not one or more whole hours.
func (m *Manager) Recurrence(ctx context.Context, q RecurrenceQuery) (*Recurrence, error) {
	q.Period = cmp.Or(q.Period, defaultRecurrencePeriod)
	if q.Period < time.Hour || q.Period%time.Hour != 0 {
		return nil, fmt.Errorf("dlq: recurrence: %w: the period is %s: whole hours, one at least", ErrInvalid, q.Period)
	}
	if q.Now.IsZero() {
		q.Now = m.Now(ctx)
	}
	to := q.Now.UTC().Truncate(time.Hour).Add(time.Hour)
	r := &Recurrence{
		From: to.Add(-q.Period), To: to,
		New: []RecurringCause{}, Growing: []RecurringCause{}, Returning: []RecurringCause{}, Fixed: []RecurringCause{},
		Steady: []RecurringCause{},
	}
	groups, more, err := m.ListGroups(ctx, GroupQuery{Limit: wire.MaxGroups, TrendSince: r.From.Add(-q.Period)})
	if err != nil {
		return nil, err
	}
	r.Incomplete = more
	if q.Shown != nil {
		groups = q.Shown(groups)
	}
	if len(groups) > driver.MaxPage {
		r.Incomplete, groups = true, groups[:driver.MaxPage]
	}
	since := q.Retention.CompleteSince(q.Now)
	for i := range groups {
		addCause(r, &groups[i], since)
	}
	for _, list := range [][]RecurringCause{r.New, r.Growing, r.Returning, r.Fixed, r.Steady} {
		slices.SortStableFunc(list, func(a, b RecurringCause) int { return int(max(b.Now, b.Before) - max(a.Now, a.Before)) })
	}
	return r, nil
}

// addCause adds a cause to the report, of whose deaths all since a time are known.
func addCause(r *Recurrence, g *driver.Group, since time.Time) {
	first := r.From.Add(-r.To.Sub(r.From))
	c := RecurringCause{
		Fingerprint: g.Fingerprint, Cause: g.Cause, Handler: g.Handler, Pending: g.Counts.Pending, FirstSeen: g.FirstSeen,
		LastSeen: g.LastSeen,
	}
	for _, h := range g.Trend {
		switch {
		case !h.Hour.Before(r.To), h.Hour.Before(first):
		case h.Hour.Before(r.From):
			c.Before += h.Count
		default:
			c.Now += h.Count
		}
	}
	r.Now += c.Now
	r.Before += c.Before
	switch {
	case c.Now == 0 && c.Before == 0: // inactive, or only closed in these hours
	case c.Now == 0 && !since.After(r.From):
		r.Fixed = append(r.Fixed, c)
	case !g.FirstSeen.Before(r.From):
		r.New = append(r.New, c)
	case since.After(first): // more may have died before
		r.Steady = append(r.Steady, c)
	case c.Before == 0:
		r.Returning = append(r.Returning, c)
	case float64(c.Now) >= growthShare*float64(c.Before) && c.Now-c.Before >= growthLeast:
		r.Growing = append(r.Growing, c)
	default:
		r.Steady = append(r.Steady, c)
	}
}

// ErrNoNotices means that the store does not record notifications.
var ErrNoNotices = errors.New("this store does not record notifications")

func (m *Manager) notices(ctx context.Context) (driver.NoticeStore, error) {
	return required[driver.NoticeStore](ctx, m.cfg.Store, fmt.Errorf("dlq: %w", ErrNoNotices))
}

// Mute suppresses notifications of a cause for a period, or forever if it is 0, and replaces an earlier mute. The error
// wraps [ErrNotFound] when there is no such cause.
func (m *Manager) Mute(ctx context.Context, fingerprint string, period time.Duration, by By) (*driver.Mute, error) {
	store, err := m.notices(ctx)
	if err != nil {
		return nil, err
	}
	if period < 0 {
		return nil, fmt.Errorf("dlq: mute: %w: %s is negative", ErrInvalid, period)
	}
	groups, err := m.Groups(ctx, GroupQuery{Fingerprint: fingerprint, Limit: 1})
	if err != nil {
		return nil, err
	}
	if fingerprint == "" || len(groups) == 0 {
		return nil, fmt.Errorf("group %.64q: %w", fingerprint, ErrNotFound)
	}
	mute := driver.Mute{
		Fingerprint: fingerprint, By: by.Actor, Note: by.Note, At: m.Now(ctx).UTC().Truncate(time.Microsecond),
	}
	if period > 0 {
		mute.Until = mute.At.Add(period)
	}
	if err := store.Mute(ctx, mute); err != nil {
		return nil, err
	}
	return &mute, nil
}

// Unmute resumes the notifications of a cause. The error wraps [ErrNotFound] when it is not muted.
func (m *Manager) Unmute(ctx context.Context, fingerprint string, by By) error {
	store, err := m.notices(ctx)
	if err != nil {
		return err
	}
	return store.Unmute(ctx, fingerprint, by, m.Now(ctx))
}

// Mutes returns the current mutes, the latest first.
func (m *Manager) Mutes(ctx context.Context) ([]driver.Mute, error) {
	store, err := m.notices(ctx)
	if err != nil {
		return nil, err
	}
	return store.Mutes(ctx, m.Now(ctx))
}
