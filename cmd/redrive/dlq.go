package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
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
		RunE: a.managed(func(ctx context.Context, m *api, _ []string) error {
			page := wire.Page{Limit: limit, After: after}
			if oldest {
				page.Order = driver.OldestFirst
			}
			if all {
				page.Limit = driver.MaxPage
			}
			entries, next, err := pages(page, all, func(page wire.Page) ([]wire.Entry, string, error) {
				list, err := m.ListEntries(ctx, filter.selected, page)
				if err != nil {
					return nil, "", err
				}
				return list.Entries, list.Next, nil
			})
			if err != nil {
				return err
			}
			if next != "" {
				next = "--all, or --after " + next
			}
			return printPage(a, entries, entryColumns, "no dead letters match", next)
		}),
	}
	filter.add(a, cmd, dlq.Pending)
	addLimit(cmd, &limit, 50)
	cmd.Flags().BoolVar(&all, "all", false, "all that match")
	cmd.Flags().BoolVar(&oldest, "oldest", false, "the oldest first")
	cmd.Flags().StringVar(&after, "after", "", "continue where an earlier listing ended")
	cmd.MarkFlagsMutuallyExclusive("all", "after")
	cmd.MarkFlagsMutuallyExclusive("all", "limit")
	return cmd
}

// pages lists a page, or that and all after it.
func pages[T any](page wire.Page, all bool, list func(wire.Page) ([]T, string, error)) (
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
		query  wire.GroupQuery
		status string
		limit  int
	)
	cmd := &cobra.Command{
		Use: "groups", Short: "Group dead letters by cause, the largest first", Args: cobra.NoArgs,
		Long: "Group dead letters by cause: errors that differ only in numbers, ids and quoted values are one.",
		Example: `  redrive dlq groups
  redrive dlq redrive --fingerprint "$(redrive dlq groups --jq '.[0].fingerprint')"`,
		RunE: a.managed(func(ctx context.Context, m *api, _ []string) error {
			if status != "any" {
				parsed, err := wire.ParseStatus(status)
				if err != nil {
					return usagef("--status: %v", err)
				}
				query.Status = parsed
			}
			query.Limit = limit
			list, err := m.ListGroups(ctx, query)
			if err != nil {
				return err
			}
			more := ""
			if list.Incomplete {
				more = fmt.Sprintf("--limit, up to %d, or --handler, --class and --error", driver.MaxPage)
			}
			return printPage(a, list.Groups, groupColumns(query.Status), "no dead letters match", more)
		}),
	}
	cmd.Flags().StringVar(&status, "status", "pending", "count the entries in this status, or any")
	cmd.Flags().StringVar(&query.Handler, "handler", "", "handler that gave up")
	cmd.Flags().StringVar(&query.ErrorClass, "class", "", "error class")
	cmd.Flags().StringVar(&query.CauseText, "error", "", "text that occurs in the cause")
	addLimit(cmd, &limit, 10)
	return cmd
}

// groupColumns count the entries in the status, or all.
func groupColumns(status wire.Status) []column[wire.Group] {
	return []column[wire.Group]{
		{title: "Group", gives: whole, value: func(g wire.Group) string { return g.Fingerprint }},
		{title: "Count", right: true, value: func(g wire.Group) string {
			if status == "" {
				return driver.FormatID(g.Counts.Total())
			}
			return driver.FormatID(g.Counts.Of(status))
		}},
		{title: "Handler", gives: drops, value: func(g wire.Group) string { return oneLine(g.Handler, 32) }},
		{title: "Cause", value: func(g wire.Group) string { return oneLine(g.Cause, 70) }},
		{title: "Class", wide: true, value: func(g wire.Group) string { return oneLine(g.ErrorClass, 40) }},
		{title: "First", wide: true, value: func(g wire.Group) string { return stampOf(g.FirstSeen) }},
		{title: "Last", value: func(g wire.Group) string { return stampOf(g.LastSeen) }},
		{title: "Sample", wide: true, value: func(g wire.Group) string { return oneLine(g.Sample, 70) }},
	}
}
