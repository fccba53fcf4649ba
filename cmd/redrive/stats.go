package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// statsView are the statistics in the output for programs.
type statsView struct {
	Total          int64            `json:"total"`
	ByStatus       map[string]int64 `json:"by_status"`
	ByTopic        []namedView      `json:"by_topic"`
	ByType         []namedView      `json:"by_type"`
	TopCauses      []groupView      `json:"top_causes"`
	Hourly         []hourView       `json:"hourly"`
	OldestPending  time.Time        `json:"oldest_pending,omitzero"`
	MeanResolution float64          `json:"mean_resolution_seconds"`
}

type namedView struct {
	Name     string           `json:"name"`
	Total    int64            `json:"total"`
	ByStatus map[string]int64 `json:"by_status"`
}

type hourView struct {
	Hour   time.Time `json:"hour"`
	Count  int64     `json:"count"`
	Closed int64     `json:"closed"`

	DiedAgain int64 `json:"died_again"`
}

func byStatus(c driver.Counts) map[string]int64 {
	m := map[string]int64{}
	for _, s := range driver.Statuses() {
		m[strings.ToLower(string(s))] = c.Of(s)
	}
	return m
}

func namedViews(named []driver.NamedCounts) []namedView {
	views := make([]namedView, 0, len(named))
	for _, n := range named {
		views = append(views, namedView{n.Name, n.Counts.Total(), byStatus(n.Counts)})
	}
	return views
}

func (a *app) statsCommand() *cobra.Command {
	since := age(7 * day)
	cmd := &cobra.Command{
		Use: "stats", Short: "Count dead letters by status, topic, type, cause and hour", Args: cobra.NoArgs,
		RunE: a.managed(func(ctx context.Context, m operator, _ []string) error {
			query := dlq.StatsQuery{Now: time.Now()}
			query.Since = since.before(query.Now)
			stats, err := m.Stats(ctx, query)
			if err != nil {
				return err
			}
			v := statsOf(&stats)
			return a.printOne(v, func(w io.Writer) error { return a.writeStats(w, &v) })
		}),
	}
	cmd.Flags().Var(&since, "since", "how far back the hourly curve goes: 24h, 7d")
	return cmd
}

// hourLayout is how the curve names an hour: always as a time of day, even where other times are relative.
const hourLayout = "2006-01-02 15:04Z"

func statsOf(s *driver.Stats) statsView {
	v := statsView{
		Total: s.Counts.Total(), ByStatus: byStatus(s.Counts), ByTopic: namedViews(s.ByTopic), ByType: namedViews(s.ByType),
		TopCauses: []groupView{}, Hourly: []hourView{}, OldestPending: s.OldestPending,
		MeanResolution: s.MeanResolution.Duration().Seconds(),
	}
	for i := range s.TopCauses {
		v.TopCauses = append(v.TopCauses, groupOf(&s.TopCauses[i], dlq.Pending))
	}
	for _, h := range s.Hourly {
		v.Hourly = append(v.Hourly, hourView(h))
	}
	return v
}

func (a *app) writeStats(w io.Writer, v *statsView) error {
	var out strings.Builder
	fmt.Fprintf(&out, "%s:", deadLetters(v.Total))
	for i, s := range driver.Statuses() {
		if i > 0 {
			out.WriteByte(',')
		}
		name := strings.ToLower(string(s))
		fmt.Fprintf(&out, " %d %s", v.ByStatus[name], name)
	}
	out.WriteByte('\n')
	if !v.OldestPending.IsZero() {
		fmt.Fprintf(&out, "the oldest pending one died at %s\n", stampOf(v.OldestPending))
	}
	if v.MeanResolution > 0 {
		fmt.Fprintf(&out, "mean time to resolution %s\n",
			time.Duration(v.MeanResolution*float64(time.Second)).Round(time.Second))
	}
	counts := func(name string) func(namedView) string {
		return func(n namedView) string { return driver.FormatID(n.ByStatus[name]) }
	}
	columns := []column[namedView]{
		{title: "Topic", value: func(n namedView) string { return oneLine(n.Name, 40) }},
		{title: "Total", right: true, value: func(n namedView) string { return driver.FormatID(n.Total) }},
	}
	for _, s := range driver.Statuses() {
		columns = append(columns, column[namedView]{title: string(s), right: true, value: counts(strings.ToLower(string(s)))})
	}
	writeTable(a, &out, v.ByTopic, columns)
	writeTable(a, &out, v.TopCauses, groupColumns)
	writeTable(a, &out, v.Hourly, []column[hourView]{
		{title: "Hour", value: func(h hourView) string { return h.Hour.UTC().Format(hourLayout) }},
		{title: "Died", right: true, value: func(h hourView) string { return driver.FormatID(h.Count) }},
		{title: "Died again", right: true, value: func(h hourView) string { return driver.FormatID(h.DiedAgain) }},
		{title: "Closed", right: true, value: func(h hourView) string { return driver.FormatID(h.Closed) }},
	})
	_, err := io.WriteString(w, out.String())
	return err
}
