package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
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

	InRate, OutRate float64
	// Recent has spans of five minutes, Day and Week hours.
	Recent, Day, Week curve
	Causes            []cause
	// Topics are those with the most pending entries, of which Most is the largest number.
	Topics     []driver.NamedCounts
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
		snapshot: s, InRate: perHour(s.Stats.Hourly, s.Now, driver.HourCount.Deaths),
		OutRate: perHour(s.Stats.Hourly, s.Now, func(h driver.HourCount) int64 { return h.Closed }),
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
	data.Topics = slices.SortedStableFunc(byTopic, func(a, b driver.NamedCounts) int {
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

// period is a choice of how long a report looks back; the URL accepts any whole hours up to maxPeriod.
type period struct{ Since, Label string }

const (
	defaultPeriod = "7d"
	// maxPeriod limits what one page reads from the store: every hour of twice the period.
	maxPeriod = 366 * 24 * time.Hour
)

// reportPart is a table of the report.
type reportPart struct {
	Title, Lede, None string
	Causes            []dlq.RecurringCause
}

// reportData is what the page of the report shows.
type reportData struct {
	*dlq.Recurrence
	Since   string
	Periods []period
	Parts   []reportPart
	// Earlier is the start of the period that it compares with.
	Earlier time.Time
	// Most is how many causes are considered.
	Most int
}

// Length is how long the period is.
func (d *reportData) Length() time.Duration { return d.To.Sub(d.From) }

// Empty reports whether there were no dead letters, neither now nor before.
func (d *reportData) Empty() bool { return d.Now == 0 && d.Before == 0 }

// recurrence is the requested report, as the caller may see it, and the period as it was written.
func (r *request) recurrence() (report *dlq.Recurrence, since string, at time.Time, err error) {
	since = cmp.Or(r.Form.Get("since"), defaultPeriod)
	length, err := parseAge(since)
	if err != nil {
		return nil, since, at, err
	}
	if length < time.Hour || length%time.Hour != 0 || length > maxPeriod {
		return nil, since, at, invalid("a report over %s: whole hours, from 1h to 366d", since)
	}
	report, at, err = cached(r.Context(), r.cache, fmt.Sprintf("report %s %t", length, r.sees.Hides()),
		func(ctx context.Context) (*dlq.Recurrence, error) { return r.cfg.Recurrence(ctx, length) })
	return report, since, at, err
}

// report shows which causes are new, growing, back, or gone.
func (r *request) report() error {
	report, since, at, err := r.recurrence()
	if err != nil {
		return err
	}
	data := reportData{
		Recurrence: report, Since: since, Earlier: report.From.Add(-report.To.Sub(report.From)), Most: driver.MaxPage,
		Periods: []period{{"24h", "Day"}, {"7d", "Week"}, {"30d", "30 days"}, {"90d", "90 days"}},
		Parts: []reportPart{
			{"New", "Never seen before this period.", "No cause is new: all were seen before.", report.New},
			{"Growing", "At least half as many again as before, and at least five more.", "No cause is growing.", report.Growing},
			{
				"Returning", "Seen earlier, not in the period before, and here again.", "No cause is back.",
				report.Returning,
			},
			{
				"Fixed", "Seen in the period before, but not in this one. Entries that still wait can be redriven.",
				"No cause is gone.", report.Fixed,
			},
			{"Steady", "About as frequent as before, or less.", "No cause is steady.", report.Steady},
		},
	}
	return r.page("report", view{Title: "Report", Nav: "report", Live: true, At: at, Data: &data})
}

// reportMarkdown downloads the report for a chat, an issue or a mail.
func (r *request) reportMarkdown() error {
	report, _, _, err := r.recurrence()
	if err != nil {
		return err
	}
	return r.download("text/markdown; charset=utf-8", reportName(report, "md"), []byte(report.Markdown()))
}

// reportJSON downloads the report for a program.
func (r *request) reportJSON() error {
	report, _, _, err := r.recurrence()
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return fmt.Errorf("dashboard: report: %w", err)
	}
	return r.download("application/json", reportName(report, "json"), append(text, '\n'))
}

func reportName(r *dlq.Recurrence, extension string) string {
	return fmt.Sprintf("dead-letters-%s-to-%s.%s", r.From.Format(time.DateOnly), r.To.Format(time.DateOnly), extension)
}
