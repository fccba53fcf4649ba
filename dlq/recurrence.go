package dlq

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
)

// defaultRecurrencePeriod is how long a report looks back, and once more to compare.
const defaultRecurrencePeriod = 7 * 24 * time.Hour

// growth is from when on a cause grows: by half, and by enough that it is not an accident.
const (
	growthShare = 1.5
	growthLeast = 5
)

// RecurrenceQuery asks for a [Recurrence].
type RecurrenceQuery struct {
	// Period is how long the report looks back; it is compared with the same time before. Whole hours. Defaults to
	// 7 days.
	Period time.Duration
	// Now is the end of the period. Defaults to the time of the call. The hour that it lies in counts as a whole.
	Now time.Time
}

// Recurrence describes how the causes of dead letters have changed since the last period: which are new, grow, have
// come back, or come no more. It is made from the kept statistics of the causes.
type Recurrence struct {
	// From and To bound the period, To not included; the one before begins as long before From.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Now and Before are the dead letters of all causes in the period and in the one before.
	Now    int64 `json:"now"`
	Before int64 `json:"before"`
	// New were never seen before the period. Growing came at least half as often again as before, and five times more.
	// Returning came in this period and earlier, but not in the one before. Fixed came in the one before, and no more.
	// Steady are the rest. Each begins with the cause that came most.
	New       []RecurringCause `json:"new"`
	Growing   []RecurringCause `json:"growing"`
	Returning []RecurringCause `json:"returning"`
	Fixed     []RecurringCause `json:"fixed"`
	Steady    []RecurringCause `json:"steady"`
	// Incomplete means that there are more causes than were looked at: those with the fewest entries are left out.
	Incomplete bool `json:"incomplete,omitzero"`
}

// RecurringCause is a cause in a [Recurrence].
type RecurringCause struct {
	Fingerprint string `json:"fingerprint"`
	Cause       string `json:"cause"`
	Handler     string `json:"handler,omitzero"`
	// Now and Before are its dead letters in the period and in the one before; Pending is how many wait now, of any
	// time.
	Now     int64 `json:"now"`
	Before  int64 `json:"before"`
	Pending int64 `json:"pending"`
	// FirstSeen and LastSeen are the first and the last death of all.
	FirstSeen time.Time `json:"first_seen"`
	LastSeen  time.Time `json:"last_seen"`
}

// Recurrence compares the causes of the last period with those of the one before. The error wraps [ErrInvalid] for a
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
	case c.Now == 0 && c.Before == 0: // it rests, or only its closing was in these hours
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
