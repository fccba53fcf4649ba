package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

func (a *app) auditListCommand() *cobra.Command {
	var (
		query       wire.AuditQuery
		entry       string
		since       age
		limit       int
		all, single bool
	)
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the audit log, the newest first", Args: cobra.NoArgs,
		Long: "List the audit log, the newest first. A run's changes to many entries are one row, unless --single.",
		Example: `  redrive audit list --actor ana --since 24h
  redrive audit list --run last-evening --single -o csv --all`,
		RunE: a.managed(func(ctx context.Context, m *api, _ []string) error {
			if entry != "" {
				id, err := driver.ParseID(entry)
				if err != nil {
					return usagef("--entry: %v", err)
				}
				query.EntryID = id
			}
			if since > 0 {
				query.From = since.before(time.Now())
			}
			separate := auditColumns
			if !single {
				separate = nil // a run's changes may be on several pages
			}
			records, more, err := pages(a, wire.Page{Limit: limit}, all, separate,
				func(page wire.Page) ([]wire.AuditRecord, string, error) {
					list, err := m.ListAudit(ctx, query, page)
					list = cmp.Or(list, &wire.AuditList{}) // nil after an error
					return list.Records, list.Next, err
				})
			if err != nil {
				return err
			}
			if !single {
				records = driver.FoldAudit(records)
			}
			if more != "" {
				more = "--all"
			}
			return printPage(a, records, auditColumns, "nothing is recorded", more)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(&query.Actor, "actor", "", "who did it")
	flags.StringVar((*string)(&query.Action), "action", "",
		"the action: redrive, resolve, edit, run start, login, mute, ...")
	flags.StringVar(&entry, "entry", "", "id of an entry")
	flags.StringVar(&query.Run, "run", "", "id of a redrive run")
	flags.Var(&since, "since", "at most this long ago: 90m, 24h, 30d")
	addLimit(cmd, &limit, 50)
	flags.BoolVar(&all, "all", false, "everything, --limit at a time")
	flags.BoolVar(&single, "single", false, "a row for each entry of a run")
	return cmd
}

var auditColumns = []column[wire.AuditRecord]{
	{title: "When", value: func(r wire.AuditRecord) string { return stampOf(r.At) }},
	{title: "Since", wide: true, value: func(r wire.AuditRecord) string { return stampOf(r.Since) }},
	{title: "Who", value: func(r wire.AuditRecord) string { return oneLine(r.Actor, 30) }},
	{title: "What", value: func(r wire.AuditRecord) string { return string(r.Action) }},
	{title: "Of", value: func(r wire.AuditRecord) string {
		switch {
		case len(r.Entries) > 1:
			return fmt.Sprintf("%d entries", len(r.Entries))
		case r.EntryID != 0:
			return driver.FormatID(r.EntryID)
		case r.Run != "":
			return ""
		}
		var of []string // a token, a cause, a purge
		for _, name := range slices.Sorted(maps.Keys(r.Detail)) {
			of = append(of, name+" "+r.Detail[name])
		}
		return oneLine(strings.Join(of, ", "), 60)
	}},
	{title: "To", gives: drops, value: func(r wire.AuditRecord) string { return string(r.To) }},
	{title: "Run", gives: drops, value: func(r wire.AuditRecord) string { return r.Run }},
	{title: "Why", value: func(r wire.AuditRecord) string { return oneLine(r.Note, 60) }},
}

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
			until := "until unmuted"
			if !mute.Until.IsZero() {
				until = "until " + stampOf(mute.Until)
			}
			a.hint("muted %s; redrive dlq unmute %s ends it", until, args[0])
			return nil
		}),
	}
	cmd.Flags().Var(&period, "for", "for how long: 90m, 24h, 30d (default until unmuted)")
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
	{title: "Until", value: func(m wire.Mute) string { return cmp.Or(stampOf(m.Until), "unmuted") }},
	{title: "By", gives: drops, value: func(m wire.Mute) string { return oneLine(m.By, 30) }},
	{title: "Why", value: func(m wire.Mute) string { return oneLine(m.Note, 60) }},
}
