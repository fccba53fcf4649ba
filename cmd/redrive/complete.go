package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Completions query the store briefly, and stay empty when it does not respond: a shell waits for them.
const completionTimeout = 2 * time.Second

// completes offers the values that are found, in this order with cobra.ShellCompDirectiveKeepOrder.
func (a *app) completes(order cobra.ShellCompDirective, values func(context.Context, *api) ([]string, error),
) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		var found []string
		manager, err := a.manager(ctx)
		if err == nil {
			found, err = values(ctx, manager)
		}
		if err != nil {
			found = nil
		}
		return found, cobra.ShellCompDirectiveNoFileComp | order
	}
}

func (a *app) completeTopics() cobra.CompletionFunc {
	return a.completes(0, func(ctx context.Context, m *api) ([]string, error) {
		stats, err := m.GetStats(ctx, wire.StatsQuery{})
		if err != nil {
			return nil, err
		}
		var names []string
		for _, t := range stats.ByTopic {
			names = append(names, t.Name)
		}
		return names, nil
	})
}

func (a *app) completeGroups() cobra.CompletionFunc {
	return a.completes(0, func(ctx context.Context, m *api) ([]string, error) {
		list, err := m.ListGroups(ctx, wire.GroupQuery{Limit: 50})
		if err != nil {
			return nil, err
		}
		var names []string
		for _, g := range list.Groups {
			names = append(names, cobra.CompletionWithDesc(g.Fingerprint, oneLine(g.Cause, 60)))
		}
		return names, nil
	})
}

// completeIDs offers the newest entries in the states that the command takes.
func (a *app) completeIDs(statuses ...dlq.Status) cobra.CompletionFunc {
	return a.completes(cobra.ShellCompDirectiveKeepOrder, func(ctx context.Context, m *api) ([]string, error) {
		list, err := m.ListEntries(ctx, wire.Filter{Statuses: statuses}, wire.Page{})
		if err != nil {
			return nil, err
		}
		var ids []string
		for i := range list.Entries {
			e := &list.Entries[i]
			ids = append(ids, cobra.CompletionWithDesc(driver.FormatID(e.ID), oneLine(e.Topic+": "+e.ErrorMessage, 60)))
		}
		return ids, nil
	})
}
