package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/redrive"
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
			edit := dlq.Edit{RemoveHeaders: remove, SetHeaders: map[string]string{}}
			for _, pair := range set {
				name, value, ok := strings.Cut(pair, "=")
				if !ok {
					return usagef("--set %s: write header=value", pair)
				}
				edit.SetHeaders[name] = value
			}
			if cmd.Flags().Changed("payload") {
				if edit.Payload, err = a.bytesOf(payload); err != nil {
					return err
				}
			}
			if edit.Payload == nil && len(set) == 0 && len(remove) == 0 {
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

func (a *app) previewEdit(ctx context.Context, m operator, id int64, edit dlq.Edit) error {
	diff, err := m.PreviewEdit(ctx, id, edit)
	if err != nil {
		return err
	}
	a.hint("dry run: nothing is changed")
	return a.printDiff(diff)
}

func (a *app) edit(ctx context.Context, m operator, id int64, edit dlq.Edit, revive bool) error {
	edited, diff, err := m.Edit(ctx, id, edit, a.by())
	if err != nil {
		return err
	}
	if err := a.printDiff(diff); err != nil || !revive {
		return err
	}
	if _, err = m.Redrive(ctx, id, a.by()); errors.Is(err, redrive.ErrForbidden) {
		return a.askSecond(ctx, m, id, edited.Version, err)
	}
	if err != nil {
		return fmt.Errorf("edited, but not redriven: %w", err)
	}
	a.hint("1 redriven")
	return nil
}

// askSecond starts a run of one entry that waits for approval, if the user may not send it alone.
func (a *app) askSecond(ctx context.Context, m operator, id, version int64, refused error) error {
	run, err := m.StartRun(ctx, redrive.Spec{
		ID:     fmt.Sprintf("edit-%d-%d", id, version),
		Filter: dlq.Filter{IDs: []int64{id}},
	}, a.by())
	if err != nil {
		return fmt.Errorf("edited, but not redriven: %w", errors.Join(refused, err))
	}
	a.hint("edited; run %s sends it once a second person has approved it: redrive runs approve %s", run.ID, run.ID)
	return nil
}

// bytesOf reads an argument that may name a file.
func (a *app) bytesOf(text string) ([]byte, error) {
	switch {
	case text == "-":
		return io.ReadAll(a.in)
	case strings.HasPrefix(text, "@"):
		return os.ReadFile(text[1:])
	default:
		return []byte(text), nil
	}
}

func (a *app) printDiff(diff payload.Diff) error {
	if diff.Empty() {
		a.hint("nothing differs")
		return nil
	}
	return a.printOne(diff, func(w io.Writer) error {
		_, err := io.WriteString(w, strings.TrimRight(printable(diff.String(), true), "\n")+"\n")
		return err
	})
}
