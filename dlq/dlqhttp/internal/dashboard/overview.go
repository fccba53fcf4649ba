package dashboard

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
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

// curve has the deaths, the repeated deaths among them and the closed entries of each hour, in the form that uPlot
// reads: without gaps, x in seconds.
type curve struct {
	Hours []int64 `json:"x"`
	In    []int64 `json:"in"`
	Again []int64 `json:"again"`
	Out   []int64 `json:"out"`
}

// curveOf fills the gaps between the hours that a store returns: the last hours before now, including the current one.
func curveOf(hours []wire.HourCount, now time.Time, last int) curve {
	first := now.UTC().Truncate(time.Hour).Add(-time.Duration(last-1) * time.Hour)
	c := curve{Hours: make([]int64, last), In: make([]int64, last), Again: make([]int64, last), Out: make([]int64, last)}
	for i := range last {
		c.Hours[i] = first.Add(time.Duration(i) * time.Hour).Unix()
	}
	for _, h := range hours {
		if i := int(h.Hour.Sub(first) / time.Hour); !h.Hour.Before(first) && i < last {
			c.In[i], c.Again[i], c.Out[i] = h.Deaths(), h.DiedAgain, h.Closed
		}
	}
	return c
}

// recentOf is the curve of the spans of the last hour, which have no gaps.
func recentOf(spans []wire.SpanCount) curve {
	var c curve
	for _, s := range spans {
		c.Hours, c.In = append(c.Hours, s.From.Unix()), append(c.In, s.Count)
		c.Again, c.Out = append(c.Again, s.DiedAgain), append(c.Out, s.Closed)
	}
	return c
}

// sum is a total, for people who cannot see the curve.
func sum(numbers []int64) (total int64) {
	for _, n := range numbers {
		total += n
	}
	return total
}

// curveRow is a row of the table that replaces the curve without scripts.
type curveRow struct {
	From           string
	In, Again, Out int64
	// SoFar means that the time is not over.
	SoFar bool
}

// Rows are the hours of a day, or the days of more, newest first.
func (c curve) Rows() []curveRow {
	var rows []curveRow
	layout := "2006-01-02"
	if len(c.Hours) <= dayHours {
		layout = "2006-01-02 15:04Z"
	}
	for i, hour := range slices.Backward(c.Hours) {
		from := time.Unix(hour, 0).UTC().Format(layout)
		if n := len(rows); n == 0 || rows[n-1].From != from {
			rows = append(rows, curveRow{From: from, SoFar: n == 0})
		}
		rows[len(rows)-1].In += c.In[i]
		rows[len(rows)-1].Again += c.Again[i]
		rows[len(rows)-1].Out += c.Out[i]
	}
	return rows
}

// sparkline is a small curve of one cause, drawn by the server: the points of a polygon in a box of sparkWidth by
// sparkHeight.
type sparkline struct {
	Area, Line string
	Total      int64
}

const (
	sparkPoints = 28 // of six hours each
	sparkWidth  = 112
	sparkHeight = 24
)

// sparkPointsOf are the numbers of the last seven days.
func sparkPointsOf(hours []wire.HourCount, now time.Time) []int64 {
	points := make([]int64, sparkPoints)
	for i, n := range curveOf(hours, now, weekHours).In {
		points[i*sparkPoints/weekHours] += n
	}
	return points
}

// sparklineOf draws the last seven days, on a scale that ends at top.
func sparklineOf(hours []wire.HourCount, now time.Time, top int64) sparkline {
	points := sparkPointsOf(hours, now)
	var line strings.Builder
	for i, n := range points {
		x := float64(i) * sparkWidth / (sparkPoints - 1)
		y := 1 + float64(sparkHeight-2)*(1-float64(n)/float64(max(top, 1)))
		fmt.Fprintf(&line, "%.1f,%.1f ", x, y)
	}
	text := strings.TrimSpace(line.String())
	return sparkline{
		Line: text, Area: fmt.Sprintf("0,%d %s %d,%d", sparkHeight, text, sparkWidth, sparkHeight), Total: sum(points),
	}
}

// perHour is the current number per hour: of the current hour and the part of the previous one that is less than an
// hour ago.
func perHour(hours []wire.HourCount, now time.Time, of func(wire.HourCount) int64) float64 {
	current := now.UTC().Truncate(time.Hour)
	passed := now.Sub(current).Hours()
	rate := 0.0
	for _, h := range hours {
		switch {
		case h.Hour.Equal(current):
			rate += float64(of(h))
		case h.Hour.Equal(current.Add(-time.Hour)):
			rate += float64(of(h)) * (1 - passed)
		}
	}
	return rate
}

// timelineEvent is an event in the life of a message.
type timelineEvent struct {
	At time.Time
	// Kind chooses the colour: bad, good, move, note.
	Kind, Title string
	Who, Note   string
	// Detail is more text, such as an error.
	Detail string
	Run    string
}

// timeline is the life of a message: its attempts before it died, every redrive and its outcome, and what people did.
func timeline(e *wire.Entry, audit []wire.AuditRecord) []timelineEvent {
	var all []timelineEvent
	add := func(at time.Time, kind, title string) *timelineEvent {
		all = append(all, timelineEvent{At: at, Kind: kind, Title: title})
		return &all[len(all)-1]
	}
	if !e.BrokerTime.IsZero() {
		add(e.BrokerTime, "note", "Published to "+string(e.Topic))
	}
	if first := e.FirstFailureAt; !first.IsZero() && e.Attempts > 1 && first.Before(e.CreatedAt) {
		add(first, "bad", "Attempt 1 failed")
	}
	died := add(e.CreatedAt, "bad", "Died")
	if e.Attempts > 0 && e.DeathRedrive == 0 {
		died.Title = fmt.Sprintf("Died after attempt %d, %s", e.Attempts, e.Reason)
	}
	// The first error is the entry's, unless it has died again since: then the records have it.
	died.Detail = string(e.ErrorMessage)
	again := slices.IndexFunc(audit, func(r wire.AuditRecord) bool { return r.Detail["previous_error"] != "" })
	if again >= 0 {
		died.Detail = audit[again].Detail["previous_error"]
	}
	for i := range audit {
		all = append(all, timelineEventOf(&audit[i]))
	}
	if e.SeenCount > 1 {
		add(e.LastSeenAt, "note", fmt.Sprintf("Reported %d times: the same delivery, kept once", e.SeenCount))
	}
	slices.SortStableFunc(all, func(a, b timelineEvent) int { return cmp.Compare(a.At.UnixMicro(), b.At.UnixMicro()) })
	return all
}

// timelineTitles are the kinds and titles of what happened to an entry; anything else is a note in the action's words.
var timelineTitles = map[driver.Action][2]string{
	driver.ActionRedrive:       {"move", "Redriven"},
	driver.ActionDie:           {"bad", "Died again"},
	driver.ActionSucceed:       {"good", "The consumer handled it"},
	driver.ActionRelease:       {"bad", "Not published: returned"},
	driver.ActionReleaseByHand: {"bad", "Released: its outcome is not waited for"},
	driver.ActionResolve:       {"good", "Resolved"},
	driver.ActionDiscard:       {"note", "Discarded"},
	driver.ActionPark:          {"note", "Parked for a person"},
	driver.ActionRestore:       {"note", "Restored to pending"},
	driver.ActionEdit:          {"move", "Edited: revision "},
	driver.ActionImport:        {"note", "Imported"},
}

func timelineEventOf(r *wire.AuditRecord) timelineEvent {
	m := timelineEvent{
		At: r.At, Kind: "note", Title: words(r.Action), Who: r.Actor, Note: r.Note, Run: r.Run, Detail: r.Detail["error"],
	}
	action := r.Action
	if known, ok := timelineTitles[action]; ok {
		m.Kind, m.Title = known[0], known[1]
	}
	switch {
	case action == driver.ActionEdit:
		m.Title += r.Detail["revision"]
	case action == driver.ActionDie && r.To == dlq.Parked:
		m.Title = "Died again, and its redrives are used up: parked"
	}
	return m
}
