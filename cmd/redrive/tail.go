package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
)

func (a *app) tailCommand() *cobra.Command {
	var (
		filter filterFlags
		lines  int
		every  time.Duration
		follow bool
	)
	cmd := &cobra.Command{
		Use: "tail", Short: "Show the last dead letters and go on as more die", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := filter.read(time.Now())
			if err != nil {
				return err
			}
			if a.flags.output != "table" && a.flags.output != "jsonl" {
				return usagef("tail prints lines: -o jsonl or nothing")
			}
			if every <= 0 {
				return usagef("--every %s: must be positive", every)
			}
			ctx := cmd.Context()
			manager, err := a.manager(ctx)
			if err != nil {
				return err
			}
			list, err := manager.List(ctx, f, dlq.Page{Limit: max(lines, 1)})
			if err != nil {
				return err
			}
			var last dlq.Cursor
			for i := len(list.Entries) - 1; i >= 0; i-- {
				e := &list.Entries[i]
				last = dlq.Cursor{Order: dlq.OldestFirst, At: e.CreatedAt, ID: e.ID}
				if i < lines {
					if err := a.tailLine(e); err != nil {
						return err
					}
				}
			}
			ticker := time.NewTicker(every)
			defer ticker.Stop()
			for follow {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-ticker.C:
				}
				page := dlq.Page{Order: dlq.OldestFirst, Limit: dlq.MaxPage}
				if last.ID > 0 {
					page.After = last.String()
				}
				list, err := manager.List(ctx, f, page)
				if err != nil {
					return err
				}
				for i := range list.Entries {
					e := &list.Entries[i]
					last = dlq.Cursor{Order: dlq.OldestFirst, At: e.CreatedAt, ID: e.ID}
					if err := a.tailLine(e); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	filter.add(a, cmd)
	cmd.Flags().IntVarP(&lines, "lines", "n", 10, "begin with so many of the last")
	cmd.Flags().BoolVarP(&follow, "follow", "f", true, "go on until interrupted")
	cmd.Flags().DurationVar(&every, "every", time.Second, "how often to look")
	return cmd
}

func (a *app) tailLine(e *dlq.Entry) error {
	if a.flags.output == "jsonl" {
		return a.printJSON(viewOf(e), false)
	}
	_, err := fmt.Fprintf(a.out, "%s  %d  %s  %s  %s\n", stampOf(e.CreatedAt), e.ID, oneLine(e.Origin.Topic, 40), e.Reason,
		oneLine(e.ErrorMessage, 100))
	return err
}
