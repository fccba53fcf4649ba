package main

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"
)

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
