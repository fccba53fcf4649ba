package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq/wire"
)

func (a *app) muteCommand() *cobra.Command {
	var period age
	cmd := &cobra.Command{
		Use: "mute GROUP", Short: "Stop the notifications of a cause", Args: cobra.ExactArgs(1),
		Example: `  redrive dlq mute 1f0c9f7a1b2c3d4e --for 24h --note 'the bank knows'`,
		RunE: a.managed(func(ctx context.Context, m *api, args []string) error {
			mute, err := m.MuteGroup(ctx, args[0], time.Duration(period), a.by())
			if err != nil {
				return err
			}
			until := "for good"
			if !mute.Until.IsZero() {
				until = "until " + stampOf(mute.Until)
			}
			a.hint("muted %s; redrive dlq unmute %s ends it", until, args[0])
			return nil
		}),
	}
	cmd.Flags().Var(&period, "for", "for how long: 90m, 24h, 30d; for good if not given")
	return cmd
}

func (a *app) unmuteCommand() *cobra.Command {
	return &cobra.Command{
		Use: "unmute GROUP", Short: "Resume the notifications of a cause", Args: cobra.ExactArgs(1),
		RunE: a.managed(func(ctx context.Context, m *api, args []string) error {
			_, err := m.UnmuteGroup(ctx, args[0], a.by())
			return err
		}),
	}
}

func (a *app) mutesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "mutes", Short: "List the muted causes", Args: cobra.NoArgs,
		RunE: a.managed(func(ctx context.Context, m *api, _ []string) error {
			list, err := m.ListMutes(ctx)
			if err != nil {
				return err
			}
			return printPage(a, list.Mutes, muteColumns, "no cause is muted", "")
		}),
	}
}

var muteColumns = []column[wire.Mute]{
	{title: "Group", gives: whole, value: func(m wire.Mute) string { return m.Fingerprint }},
	{title: "Since", value: func(m wire.Mute) string { return stampOf(m.At) }},
	{title: "Until", value: func(m wire.Mute) string { return firstOf(stampOf(m.Until), "for good") }},
	{title: "By", gives: drops, value: func(m wire.Mute) string { return oneLine(m.By, 30) }},
	{title: "Why", value: func(m wire.Mute) string { return oneLine(m.Note, 60) }},
}
