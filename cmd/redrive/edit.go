package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

func (a *app) editCommand() *cobra.Command {
	var (
		payload        string
		set, remove    []string
		dryRun, revive bool
	)
	cmd := &cobra.Command{
		Use: "edit ID", Short: "Change a dead letter's payload or headers before it is redriven", Args: cobra.ExactArgs(1),
		Long: `Change a dead letter's payload or headers. The original is kept, and what changed is shown and recorded in the audit log. The
message's own id, its retries and the like cannot be changed.`,
		Example: `  redrive dlq show 42 --raw > order.json; $EDITOR order.json; redrive dlq edit 42 --payload @order.json
  redrive dlq edit 42 --set tenant=acme --remove x-debug --dry-run
  redrive dlq edit 42 --payload @order.json --redrive --config redrive.yaml`,
		ValidArgsFunction: a.completeIDs(dlq.Pending, dlq.Parked),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.checkOne(); err != nil {
				return err
			}
			id, err := driver.ParseID(args[0])
			if err != nil {
				return usagef("%v", err)
			}
			edit := wire.Edit{RemoveHeaders: remove, SetHeaders: map[string]string{}}
			for _, pair := range set {
				name, value, ok := strings.Cut(pair, "=")
				if !ok {
					return usagef("--set %s: write header=value", pair)
				}
				edit.SetHeaders[name] = value
			}
			if cmd.Flags().Changed("payload") {
				if err := a.setPayload(&edit, payload); err != nil {
					return err
				}
			} else if len(set)+len(remove) == 0 {
				return usagef("nothing to change: give --payload, --set or --remove")
			}
			open := a.manager
			if revive && !dryRun {
				open = a.redriver
			}
			manager, err := open(cmd.Context())
			switch {
			case err != nil:
				return err
			case dryRun:
				return a.previewEdit(cmd.Context(), manager, id, edit)
			default:
				return a.edit(cmd.Context(), manager, id, edit, revive)
			}
		},
	}
	cmd.Flags().StringVar(&payload, "payload", "", "new payload: the text itself, @file, or - for stdin")
	cmd.Flags().StringArrayVar(&set, "set", nil, "header=value; may be repeated")
	cmd.Flags().StringArrayVar(&remove, "remove", nil, "header to remove; may be repeated")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show the difference, and change nothing")
	cmd.Flags().BoolVar(&revive, "redrive", false, "send it back at once")
	return cmd
}

func (a *app) previewEdit(ctx context.Context, m *api, id int64, edit wire.Edit) error {
	diff, err := m.PreviewEdit(ctx, id, edit)
	if err != nil {
		return err
	}
	a.hint("dry run: nothing is changed")
	return a.printDiff(diff)
}

func (a *app) edit(ctx context.Context, m *api, id int64, edit wire.Edit, revive bool) error {
	edited, err := m.EditEntry(ctx, id, edit, false, a.by())
	if err != nil {
		return err
	}
	if err := a.printDiff(&edited.Diff); err != nil || !revive {
		return err
	}
	if _, err = m.RedriveEntry(ctx, id, a.by()); statusOf(err) == http.StatusForbidden {
		return a.askSecond(ctx, m, &edited.Entry, err)
	}
	if err != nil {
		return fmt.Errorf("edited, but not redriven: %w", err)
	}
	a.hint("1 redriven")
	return nil
}

// askSecond starts a run of one entry that waits for approval, if the user may not send it alone.
func (a *app) askSecond(ctx context.Context, m *api, e *wire.Entry, refused error) error {
	run, err := m.StartRun(ctx, wire.RunSpec{
		ID: fmt.Sprintf("edit-%d-%d", e.ID, e.Version), Filter: wire.Filter{IDs: []int64{e.ID}},
	}, a.by())
	if err != nil {
		return fmt.Errorf("edited, but not redriven: %w", errors.Join(refused, err))
	}
	a.hint("edited; run %s sends it once a second person has approved it: redrive runs approve %s", run.ID, run.ID)
	return nil
}

// setPayload sets the payload of an edit to an argument, or to the file that it names.
func (a *app) setPayload(edit *wire.Edit, text string) error {
	data, err := []byte(text), error(nil)
	switch {
	case text == "-":
		data, err = io.ReadAll(a.in)
	case strings.HasPrefix(text, "@"):
		data, err = os.ReadFile(text[1:])
	}
	var body wire.Body
	body.SetBytes(data)
	edit.Payload, edit.PayloadBase64 = body.Payload, body.PayloadBase64
	return err
}

func (a *app) printDiff(diff *wire.Diff) error {
	if diff.Empty() && a.textOutput() {
		a.hint("no difference")
		return nil
	}
	return a.printOne(diff, func() string { return strings.TrimRight(printable(diff.String(), true), "\n") + "\n" })
}
