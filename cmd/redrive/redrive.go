package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"github.com/redrive-go/redrive/dlq"
)

func (a *app) redriveCommand() *cobra.Command {
	var (
		filter filterFlags
		limit  int
		speed  float64
		dryRun bool
	)
	cmd := &cobra.Command{
		Use: "redrive [ID...]", Short: "Send dead letters back to where they came from",
		Long: `Send dead letters back to the consumer that they came from.

Takes ids (7 9 12-20) or a filter. With a filter it shows how many are meant and asks; --yes answers. A redriven entry is
RETRYING until its consumer reports; entries that were collected from a broker are RESOLVED when the broker confirms.`,
		Example: `  redrive dlq redrive 7 9 --config redrive.yaml
  redrive dlq redrive --topic orders --rate 50 --yes --broker amqp://localhost/`,
		ValidArgsFunction: a.completeIDs(dlq.Pending),
		RunE: func(cmd *cobra.Command, args []string) error {
			looker, err := a.manager(cmd.Context())
			if err != nil {
				return err
			}
			ids, err := a.pick(cmd, looker, args, &filter, limit)
			if err != nil {
				return err
			}
			if dryRun {
				return a.dryRun(cmd.Context(), looker, ids)
			}
			if len(args) == 0 {
				if err := a.confirm("redrive", int64(len(ids))); err != nil {
					return err
				}
			}
			manager, err := a.redriver(cmd.Context())
			if err != nil {
				return err
			}
			if !cmd.Flags().Changed("rate") {
				speed = a.cfg.Redrive.Rate
			}
			return a.redriveEach(cmd.Context(), manager, ids, speed)
		},
	}
	filter.add(a, cmd, dlq.Pending)
	cmd.Flags().IntVar(&limit, "limit", 0, "with a filter: at most so many, the oldest first")
	cmd.Flags().Float64Var(&speed, "rate", 0, "messages a second at most; 0 is as fast as it goes")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would be sent, and send nothing")
	return cmd
}

func (a *app) redriveEach(ctx context.Context, m *dlq.Manager, ids []int64, speed float64) error {
	limiter := rate.NewLimiter(rate.Inf, 1)
	if speed > 0 {
		limiter = rate.NewLimiter(rate.Limit(speed), 1)
	}
	return a.each(ctx, ids, "redriven", func(ctx context.Context, id int64) error {
		if err := limiter.Wait(ctx); err != nil {
			return err
		}
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_, err := m.Redrive(work, id, a.by())
		return err
	})
}
