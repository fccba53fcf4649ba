package main

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Completions query the store briefly, and stay empty when it does not respond: a shell waits for them.
const completionTimeout = 2 * time.Second

// completes offers a value for each item that is found, in this order with cobra.ShellCompDirectiveKeepOrder.
func completes[T any](a *app, order cobra.ShellCompDirective, find func(context.Context, *api) []T,
	value func(*T) string,
) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		var values []string
		if manager, err := a.manager(ctx); err == nil {
			for _, found := range find(ctx, manager) { // none after an error
				values = append(values, value(&found))
			}
		}
		return values, cobra.ShellCompDirectiveNoFileComp | order
	}
}

func (a *app) completeTopics() cobra.CompletionFunc {
	return completes(a, 0, func(ctx context.Context, m *api) []wire.NamedCounts {
		stats, _ := m.GetStats(ctx, wire.StatsQuery{})
		return cmp.Or(stats, &wire.Stats{}).ByTopic
	}, func(t *wire.NamedCounts) string { return printable(t.Name, false) })
}

func (a *app) completeGroups() cobra.CompletionFunc {
	return completes(a, 0, func(ctx context.Context, m *api) []wire.Group {
		list, _ := m.ListGroups(ctx, wire.GroupQuery{Limit: 50})
		return cmp.Or(list, &wire.GroupList{}).Groups
	}, func(g *wire.Group) string { return cobra.CompletionWithDesc(g.Fingerprint, oneLine(g.Cause, 60)) })
}

// completeIDs offers the newest entries in the states that the command takes.
func (a *app) completeIDs(statuses ...dlq.Status) cobra.CompletionFunc {
	return completes(a, cobra.ShellCompDirectiveKeepOrder, func(ctx context.Context, m *api) []wire.Entry {
		list, _ := m.ListEntries(ctx, wire.Filter{Statuses: statuses}, wire.Page{})
		return cmp.Or(list, &wire.EntryList{}).Entries
	}, func(e *wire.Entry) string {
		return cobra.CompletionWithDesc(driver.FormatID(e.ID), oneLine(e.Topic+": "+e.ErrorMessage, 60))
	})
}
