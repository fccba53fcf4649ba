package dashboard

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
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
	Causes []driver.Group
	Active []redrive.Run
	Health []Component
	At     time.Time
}

// snapshot reads the store, for all viewers.
func (d *dashboard) snapshot(ctx context.Context) (*snapshot, time.Time, error) {
	return cached(ctx, d.cache, "overview", func(ctx context.Context) (*snapshot, error) {
		now := d.cfg.Manager.Now(ctx).UTC()
		since := now.Add(-weekHours * time.Hour)
		s := &snapshot{At: now}
		var err error
		if s.Stats, err = d.cfg.Manager.Stats(ctx,
			dlq.StatsQuery{Since: since, Now: now, TopCauses: 1, Recent: true}); err != nil {
			return nil, err
		}
		if s.Causes, err = d.cfg.Manager.Groups(ctx,
			dlq.GroupQuery{Status: dlq.Pending, TrendSince: since, Limit: topCauses}); err != nil {
			return nil, err
		}
		if s.Active, _, err = d.cfg.Runner.Runs(ctx, redrive.RunFilter{States: unfinished}, dlq.Page{Limit: 5}); err != nil {
			return nil, err
		}
		s.Health = d.health(ctx)
		return s, nil
	})
}

// unfinished are the states in which a run is in progress, or needs a person.
var unfinished = []redrive.State{
	redrive.Preparing, redrive.AwaitingApproval, redrive.Running, redrive.Paused,
	redrive.Stopped,
}

// healthTimeout is how long the components may take to respond.
const healthTimeout = 3 * time.Second

func (d *dashboard) health(ctx context.Context) []Component {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	return d.cfg.Health(ctx)
}

// overviewData is the data of the page.
type overviewData struct {
	Counts         driver.Counts
	Oldest         time.Time
	InRate, Out    float64
	MeanResolution time.Duration
	// Recent has spans of five minutes, Day and Week hours.
	Recent, Day, Week curve
	Causes            []cause
	Topics            []topic
	MoreTopics        int
	Runs              []namedRun
	Health            []Component
	Failing           int
}

// topic is a topic and its share of what waits.
type topic struct {
	Name   string
	Counts driver.Counts
	Most   int64
}

func (d *dashboard) overview(w http.ResponseWriter, r *http.Request) error {
	s, at, err := d.snapshot(r.Context())
	if err != nil {
		return err
	}
	sees := d.cfg.Visible(r.Context())
	data := overviewData{
		Counts: s.Stats.Counts, Oldest: s.Stats.OldestPending, MeanResolution: s.Stats.MeanResolution.Duration(),
		InRate: perHour(s.Stats.Hourly, s.At, driver.HourCount.Deaths),
		Out:    perHour(s.Stats.Hourly, s.At, func(h driver.HourCount) int64 { return h.Closed }),
		Recent: recentOf(s.Stats.Recent), Day: curveOf(s.Stats.Hourly, s.At, dayHours),
		Week:   curveOf(s.Stats.Hourly, s.At, weekHours),
		Causes: causesOf(s.Causes, s.At, sees), Runs: d.named(r, sees.ShownRuns(s.Active)), Health: s.Health, //nolint:contextcheck // of the request
	}
	for _, c := range s.Health {
		if c.Error != "" {
			data.Failing++
		}
	}
	var most int64 = 1
	shown := sees.Stats(&s.Stats)
	byPending := slices.SortedStableFunc(slices.Values(shown.ByTopic), func(a, b driver.NamedCounts) int {
		return cmp.Compare(b.Counts.Pending, a.Counts.Pending)
	})
	for i, n := range byPending {
		if i == topTopics {
			data.MoreTopics = len(byPending) - topTopics
			break
		}
		most = max(most, n.Counts.Pending)
		data.Topics = append(data.Topics, topic{Name: n.Name, Counts: n.Counts})
	}
	for i := range data.Topics {
		data.Topics[i].Most = most
	}
	return d.page(w, r, "overview", view{
		Title: "Overview", Nav: "overview", Live: true, At: at, Charts: true,
		Data: &data,
	})
}
