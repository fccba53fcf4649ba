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
	"github.com/redrive-go/redrive/dlq/wire"
)

func (a *app) statsCommand() *cobra.Command {
	since := age(7 * day)
	cmd := &cobra.Command{
		Use: "stats", Short: "Count dead letters by status, topic, type, cause and hour", Args: cobra.NoArgs,
		RunE: a.managed(func(ctx context.Context, m *api, _ []string) error {
			stats, err := m.GetStats(ctx, wire.StatsQuery{Since: since.before(time.Now())})
			if err != nil {
				return err
			}
			return a.printOne(stats, func(w io.Writer) error { return a.writeStats(w, stats) })
		}),
	}
	cmd.Flags().Var(&since, "since", "how far back the hourly curve goes: 24h, 7d")
	return cmd
}

// hourLayout is how the curve names an hour: always as a time of day, even where other times are relative.
const hourLayout = "2006-01-02 15:04Z"

func (a *app) writeStats(w io.Writer, stats *wire.Stats) error {
	var out strings.Builder
	fmt.Fprintf(&out, "%s:", deadLetters(stats.Counts.Total()))
	for i, s := range driver.Statuses() {
		if i > 0 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, " %d %s", stats.Counts.Of(s), strings.ToLower(string(s)))
	}
	out.WriteByte('\n')
	if !stats.OldestPending.IsZero() {
		fmt.Fprintf(&out, "the oldest pending one died at %s\n", stampOf(stats.OldestPending))
	}
	if mean := stats.MeanResolution.Duration(); mean > 0 {
		fmt.Fprintf(&out, "mean time to resolution %s\n", mean.Round(time.Second))
	}
	columns := []column[wire.NamedCounts]{
		{title: "Topic", value: func(n wire.NamedCounts) string { return oneLine(n.Name, 40) }},
		{title: "Total", right: true, value: func(n wire.NamedCounts) string { return driver.FormatID(n.Counts.Total()) }},
	}
	for _, s := range driver.Statuses() {
		columns = append(columns, column[wire.NamedCounts]{
			title: string(s), right: true,
			value: func(n wire.NamedCounts) string { return driver.FormatID(n.Counts.Of(s)) },
		})
	}
	writeTable(a, &out, stats.ByTopic, columns)
	writeTable(a, &out, stats.TopCauses, groupColumns(dlq.Pending))
	writeTable(a, &out, stats.Hourly, []column[wire.HourCount]{
		{title: "Hour", value: func(h wire.HourCount) string { return h.Hour.UTC().Format(hourLayout) }},
		{title: "Died", right: true, value: func(h wire.HourCount) string { return driver.FormatID(h.Count) }},
		{title: "Died again", right: true, value: func(h wire.HourCount) string { return driver.FormatID(h.DiedAgain) }},
		{title: "Closed", right: true, value: func(h wire.HourCount) string { return driver.FormatID(h.Closed) }},
	})
	_, err := io.WriteString(w, out.String())
	return err
}

func (a *app) reportCommand() *cobra.Command {
	since := age(7 * day)
	cmd := &cobra.Command{
		Use: "report", Short: "Report which causes are new, grow, return or are gone, as Markdown or JSON",
		Args: cobra.NoArgs,
		Long: `Compare the causes of the last week, or of --since, with those of the same time before: which are new, which grow, which have come
back, which have stopped. The report is Markdown; -o json is for programs. Run it weekly.`,
		Example: `  redrive dlq report
  redrive dlq report --since 24h -o json --jq '.new[].cause'`,
		RunE: a.managed(func(ctx context.Context, m *api, _ []string) error {
			period := time.Duration(since)
			if period < time.Hour || period%time.Hour != 0 {
				return usagef("--since %s: whole hours, one at least", &since)
			}
			report, err := m.GetReport(ctx, int(period/time.Hour))
			if err != nil {
				return err
			}
			return a.printOne(report, func(w io.Writer) error {
				_, err := io.WriteString(w, report.Markdown())
				return err
			})
		}),
	}
	cmd.Flags().Var(&since, "since", "how far back; it is compared with the same period before: 24h, 7d, 30d")
	return cmd
}
