package dlq

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
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
}

// Recurrence describes how the causes of dead letters have changed since the previous period: which are new, growing,
// back, or gone. It is computed from the maintained statistics of the causes.
type Recurrence struct {
	// From and To bound the period, To excluded; the previous one has the same length.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Now and Before count the dead letters of all causes in the period and in the previous one.
	Now    int64 `json:"now"`
	Before int64 `json:"before"`
	// New causes were never seen before the period. Growing ones have at least half as many again as before, and five
	// more. Returning ones occurred in this period and earlier, but not in the previous one. Fixed ones occurred in the
	// previous one only. Steady are the rest. Each list is sorted by count, the largest first.
	New       []RecurringCause `json:"new"`
	Growing   []RecurringCause `json:"growing"`
	Returning []RecurringCause `json:"returning"`
	Fixed     []RecurringCause `json:"fixed"`
	Steady    []RecurringCause `json:"steady"`
	// Incomplete means that there were more causes than were considered: those with the fewest entries are left out.
	Incomplete bool `json:"incomplete,omitzero"`
}

// RecurringCause is a cause in a [Recurrence].
type RecurringCause struct {
	Fingerprint string `json:"fingerprint"`
	Cause       string `json:"cause"`
	Handler     string `json:"handler,omitzero"`
	// Now and Before count its dead letters in the period and in the previous one; Pending is how many are waiting now, of
	// any age.
	Now     int64 `json:"now"`
	Before  int64 `json:"before"`
	Pending int64 `json:"pending"`
	// FirstSeen and LastSeen are its first and last death ever.
	FirstSeen time.Time `json:"first_seen"`
	LastSeen  time.Time `json:"last_seen"`
}

// Recurrence compares the causes of the last period with those of the previous one. The error wraps [ErrInvalid] for a
// period that is not one or more whole hours.
func (m *Manager) Recurrence(ctx context.Context, q RecurrenceQuery) (*Recurrence, error) {
	if q.Period == 0 {
		q.Period = defaultRecurrencePeriod
	}
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
	groups, more, err := m.ListGroups(ctx, GroupQuery{Limit: driver.MaxPage, TrendSince: r.From.Add(-q.Period)})
	if err != nil {
		return nil, err
	}
	r.Incomplete = more
	for i := range groups {
		r.add(&groups[i])
	}
	for _, list := range [][]RecurringCause{r.New, r.Growing, r.Returning, r.Fixed, r.Steady} {
		slices.SortStableFunc(list, func(a, b RecurringCause) int { return int(max(b.Now, b.Before) - max(a.Now, a.Before)) })
	}
	return r, nil
}

func (r *Recurrence) add(g *driver.Group) {
	c := RecurringCause{
		Fingerprint: g.Fingerprint, Cause: g.Cause, Handler: g.Handler, Pending: g.Counts.Pending, FirstSeen: g.FirstSeen,
		LastSeen: g.LastSeen,
	}
	for _, h := range g.Trend {
		switch {
		case !h.Hour.Before(r.To), h.Hour.Before(r.From.Add(-r.To.Sub(r.From))):
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
	case c.Now == 0:
		r.Fixed = append(r.Fixed, c)
	case !g.FirstSeen.Before(r.From):
		r.New = append(r.New, c)
	case c.Before == 0:
		r.Returning = append(r.Returning, c)
	case float64(c.Now) >= growthShare*float64(c.Before) && c.Now-c.Before >= growthLeast:
		r.Growing = append(r.Growing, c)
	default:
		r.Steady = append(r.Steady, c)
	}
}
