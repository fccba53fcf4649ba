package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// dlqCommand has the commands for entries.
func (a *app) dlqCommand() *cobra.Command {
	cmd := group("dlq", "List, look at, group, redrive and close dead letters", "",
		a.listCommand(), a.showCommand(), a.groupsCommand(), a.statsCommand(), a.reportCommand(), a.tailCommand(),
		a.redriveCommand(), a.editCommand(), a.exportCommand(), a.importCommand(), a.purgeCommand(), a.releaseCommand(),
		a.muteCommand(), a.unmuteCommand(), a.mutesCommand())
	cmd.AddCommand(a.verbCommands()...)
	return cmd
}

func (a *app) listCommand() *cobra.Command {
	var (
		filter      filterFlags
		limit       int
		all, oldest bool
		after       string
	)
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List dead letters, the newest first", Args: cobra.NoArgs,
		Example: `  redrive dlq list --topic orders --older-than 1h
  redrive dlq list --error timeout -o csv --all > timeouts.csv
  redrive dlq list --jq '.[] | [.id, .error_message] | @tsv'`,
		RunE: a.managed(func(ctx context.Context, m operator, _ []string) error {
			page := dlq.Page{Limit: limit, After: after}
			if oldest {
				page.Order = driver.OldestFirst
			}
			if all {
				page.Limit = driver.MaxPage
			}
			entries, next, err := pages(page, all, func(page dlq.Page) ([]dlq.Entry, string, error) {
				list, err := m.List(ctx, filter.selected, page)
				return list.Entries, list.Next, err
			})
			if err != nil {
				return err
			}
			if next != "" {
				next = "--all, or --after " + next
			}
			return printPage(a, viewsOf(entries), entryColumns, "no dead letters match", next)
		}),
	}
	filter.add(a, cmd, dlq.Pending)
	cmd.Flags().IntVar(&limit, "limit", 50, "at most so many, up to 1000")
	cmd.Flags().BoolVar(&all, "all", false, "all that match")
	cmd.Flags().BoolVar(&oldest, "oldest", false, "the oldest first")
	cmd.Flags().StringVar(&after, "after", "", "continue where an earlier listing ended")
	cmd.MarkFlagsMutuallyExclusive("all", "after")
	cmd.MarkFlagsMutuallyExclusive("all", "limit")
	return cmd
}

// pages lists a page, or that and all after it.
func pages[T any](page dlq.Page, all bool, list func(dlq.Page) ([]T, string, error)) (
	items []T, next string, err error,
) {
	for {
		var found []T
		found, next, err = list(page)
		items = append(items, found...)
		if err != nil || !all || next == "" {
			return items, next, err
		}
		page.After = next
	}
}

func (a *app) groupsCommand() *cobra.Command {
	var (
		query  dlq.GroupQuery
		status string
	)
	cmd := &cobra.Command{
		Use: "groups", Short: "Group dead letters by cause, the largest first", Args: cobra.NoArgs,
		Long: "Group dead letters by cause: errors that differ only in numbers, ids and quoted values are one.",
		Example: `  redrive dlq groups
  redrive dlq redrive --fingerprint "$(redrive dlq groups --jq '.[0].fingerprint')"`,
		RunE: a.managed(func(ctx context.Context, m operator, _ []string) error {
			if status != "any" {
				parsed, err := driver.ParseStatus(status)
				if err != nil {
					return usagef("--status: %v", err)
				}
				query.Status = parsed
			}
			groups, incomplete, err := m.ListGroups(ctx, query)
			if err != nil {
				return err
			}
			views := make([]groupView, 0, len(groups))
			for i := range groups {
				views = append(views, groupOf(&groups[i], query.Status))
			}
			more := ""
			if incomplete {
				more = fmt.Sprintf("--limit, up to %d, or --handler, --class and --error", driver.MaxPage)
			}
			return printPage(a, views, groupColumns, "no dead letters match", more)
		}),
	}
	cmd.Flags().StringVar(&status, "status", "pending", "count the entries in this status, or any")
	cmd.Flags().StringVar(&query.Handler, "handler", "", "handler that gave up")
	cmd.Flags().StringVar(&query.ErrorClass, "class", "", "error class")
	cmd.Flags().StringVar(&query.CauseText, "error", "", "text that occurs in the cause")
	cmd.Flags().IntVar(&query.Limit, "limit", 10, "at most so many, up to 1000")
	return cmd
}

// groupView is a group in the output for programs.
type groupView struct {
	Fingerprint string    `json:"fingerprint"`
	Count       int64     `json:"count"`
	Cause       string    `json:"cause"`
	Sample      string    `json:"sample"`
	ErrorClass  string    `json:"error_class,omitempty"`
	Handler     string    `json:"handler,omitempty"`
	FirstSeen   time.Time `json:"first_seen"`
	LastSeen    time.Time `json:"last_seen"`
	LastEntry   int64     `json:"last_entry"`
}

func groupOf(g *driver.Group, status dlq.Status) groupView {
	count := g.Counts.Total()
	if status != "" {
		count = g.Counts.Of(status)
	}
	return groupView{
		Fingerprint: g.Fingerprint, Count: count, Cause: g.Cause, Sample: g.Sample, ErrorClass: g.ErrorClass,
		Handler:   g.Handler,
		FirstSeen: g.FirstSeen, LastSeen: g.LastSeen, LastEntry: g.LastEntry,
	}
}

var groupColumns = []column[groupView]{
	{title: "Group", gives: whole, value: func(v groupView) string { return v.Fingerprint }},
	{title: "Count", right: true, value: func(v groupView) string { return driver.FormatID(v.Count) }},
	{title: "Handler", gives: drops, value: func(v groupView) string { return oneLine(v.Handler, 32) }},
	{title: "Cause", value: func(v groupView) string { return oneLine(v.Cause, 70) }},
	{title: "Class", wide: true, value: func(v groupView) string { return oneLine(v.ErrorClass, 40) }},
	{title: "First", wide: true, value: func(v groupView) string { return stampOf(v.FirstSeen) }},
	{title: "Last", value: func(v groupView) string { return stampOf(v.LastSeen) }},
	{title: "Sample", wide: true, value: func(v groupView) string { return oneLine(v.Sample, 70) }},
}
