package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
)

// Completions query the store briefly, and stay empty when it does not respond: a shell waits for them.
const completionTimeout = 2 * time.Second

// completes offers the values that are found, in this order with cobra.ShellCompDirectiveKeepOrder.
func (a *app) completes(order cobra.ShellCompDirective, values func(context.Context, operator) ([]string, error),
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
	return a.completes(0, func(ctx context.Context, m operator) ([]string, error) {
		stats, err := m.Stats(ctx, dlq.StatsQuery{})
		var names []string
		for _, t := range stats.ByTopic {
			names = append(names, t.Name)
		}
		return names, err
	})
}

func (a *app) completeGroups() cobra.CompletionFunc {
	return a.completes(0, func(ctx context.Context, m operator) ([]string, error) {
		groups, _, err := m.ListGroups(ctx, dlq.GroupQuery{Limit: 50})
		var names []string
		for _, g := range groups {
			names = append(names, cobra.CompletionWithDesc(g.Fingerprint, oneLine(g.Cause, 60)))
		}
		return names, err
	})
}

// completeIDs offers the newest entries in the states that the command takes.
func (a *app) completeIDs(statuses ...dlq.Status) cobra.CompletionFunc {
	return a.completes(cobra.ShellCompDirectiveKeepOrder, func(ctx context.Context, m operator) ([]string, error) {
		list, err := m.List(ctx, dlq.Filter{Statuses: statuses}, dlq.Page{})
		var ids []string
		for i := range list.Entries {
			e := &list.Entries[i]
			ids = append(ids, cobra.CompletionWithDesc(driver.FormatID(e.ID), oneLine(e.Origin.Topic+": "+e.ErrorMessage, 60)))
		}
		return ids, err
	})
}
