package dashboard

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Windows of the overview's curves.
const (
	dayHours  = 24
	weekHours = 7 * 24
	topCauses = 8
	topTopics = 8
)

// snapshot is what all viewers of an interval see.
type snapshot struct {
	Stats  driver.Stats
	Active []redrive.Run
	Health wire.Health
	Now    time.Time
}

// snapshot reads the store, for all viewers.
func (r *request) snapshot() (*snapshot, time.Time, error) {
	return cached(r.Context(), r.cache, "overview", func(ctx context.Context) (*snapshot, error) {
		s := &snapshot{Now: r.cfg.Manager.Now(ctx).UTC()}
		since := s.Now.Add(-weekHours * time.Hour)
		var err error
		if s.Stats, err = r.cfg.Manager.Stats(ctx,
			dlq.StatsQuery{Since: since, Now: s.Now, TopCauses: 1, Recent: true}); err != nil {
			return nil, err
		}
		if s.Active, _, err = r.cfg.Runner.Runs(ctx, redrive.RunFilter{States: unfinished}, dlq.Page{Limit: 5}); err != nil {
			return nil, err
		}
		s.Health = r.cfg.Health(ctx)
		return s, nil
	})
}

// unfinished are the states in which a run is in progress, or needs a person.
var unfinished = []redrive.State{
	redrive.Preparing, redrive.AwaitingApproval, redrive.Running, redrive.Paused, redrive.Stopped,
}

// overviewData is the data of the page.
type overviewData struct {
	*snapshot

	Health          wire.Health // as the caller may see it
	InRate, OutRate float64
	// Recent has spans of five minutes, Day and Week hours.
	Recent, Day, Week curve
	Causes            []cause
	// Topics are those with the most pending entries, of which Most is the largest number.
	Topics     []wire.NamedCounts
	Most       int64
	MoreTopics int
	Runs       []namedRun
	Failing    int
}

func (r *request) overview() error {
	s, at, err := r.snapshot()
	if err != nil {
		return err
	}
	groups, _, _, err := r.groups(dlq.GroupQuery{Status: dlq.Pending, Limit: topCauses}, weekHours)
	if err != nil {
		return err
	}
	data := overviewData{
		snapshot: s, Health: r.sees.Health(s.Health), InRate: perHour(s.Stats.Hourly, s.Now, wire.HourCount.Deaths),
		OutRate: perHour(s.Stats.Hourly, s.Now, func(h wire.HourCount) int64 { return h.Closed }),
		Recent:  recentOf(s.Stats.Recent), Day: curveOf(s.Stats.Hourly, s.Now, dayHours),
		Week:   curveOf(s.Stats.Hourly, s.Now, weekHours),
		Causes: causesOf(groups, s.Now), Runs: r.named(s.Active),
	}
	for _, c := range s.Health.Components {
		if c.Status != wire.StatusOK {
			data.Failing++
		}
	}
	byTopic := slices.Values(r.sees.Stats(&s.Stats).ByTopic)
	data.Topics = slices.SortedStableFunc(byTopic, func(a, b wire.NamedCounts) int {
		return cmp.Compare(b.Counts.Pending, a.Counts.Pending)
	})
	data.MoreTopics = max(0, len(data.Topics)-topTopics)
	data.Topics = data.Topics[:min(len(data.Topics), topTopics)]
	if len(data.Topics) > 0 {
		data.Most = data.Topics[0].Counts.Pending
	}
	return r.page("overview", view{
		Title: "Overview", Nav: "overview", Live: true, At: at, Charts: true, Data: &data,
	})
}
