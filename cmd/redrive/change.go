package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/client"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/duration"
)

// verb is an operator's change of entries.
type verb struct {
	do          driver.Action
	short, past string
	one         func(*client.Client, context.Context, int64, client.By) (*wire.Entry, error)
}

func (a *app) verbCommands() []*cobra.Command {
	return []*cobra.Command{
		a.verbCommand(&verb{driver.ActionResolve, "Mark dead letters as taken care of", "resolved", (*client.Client).ResolveEntry}),
		a.verbCommand(&verb{
			driver.ActionDiscard, "Give up dead letters; they are kept and can be restored", "discarded",
			(*client.Client).DiscardEntry,
		}),
		a.verbCommand(&verb{
			driver.ActionPark, "Set dead letters aside for a person: neither rules nor runs send them automatically", "parked",
			(*client.Client).ParkEntry,
		}),
		a.verbCommand(&verb{driver.ActionRestore, "Undo resolve, discard or park", "restored", (*client.Client).RestoreEntry}),
	}
}

func (a *app) verbCommand(v *verb) *cobra.Command {
	var (
		filter filterFlags
		dryRun bool
	)
	cmd := &cobra.Command{
		Use: string(v.do) + " [ID...]", Short: v.short,
		Long: v.short + ".\n\nTakes ids (7 9 12-20) or a filter. With a filter it shows how many match and asks; --yes " +
			"answers.",
		Args: filter.idsOrFilter,
		Example: fmt.Sprintf(`  redrive dlq %[1]s 7 9 12-20 --note "ticket 4711"
  redrive dlq %[1]s --topic orders --error "no such customer" --dry-run`, v.do),
		ValidArgsFunction: a.completeIDs(driver.From(v.do)...),
		RunE: a.managed(func(ctx context.Context, m *api, _ []string) error {
			selected := filter.selected
			if len(filter.ids) > 0 {
				selected = wire.Filter{IDs: filter.ids, Statuses: driver.From(v.do)}
			}
			switch {
			case dryRun:
				a.freeze(ctx, &selected)
				return a.dryRun(ctx, m, selected)
			case len(filter.ids) == 0:
				return a.changeAll(ctx, m, v, selected)
			}
			return a.each(ctx, filter.ids, v.past, func(ctx context.Context, id int64) error {
				_, err := v.one(m.Client, context.WithoutCancel(ctx), id, a.by())
				return err
			})
		}),
	}
	filter.add(a, cmd, driver.From(v.do)...)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would be changed, and change nothing")
	return cmd
}

func (a *app) releaseCommand() *cobra.Command {
	return &cobra.Command{
		Use: "release ID...", Short: "End the wait for the outcome of a redrive that will not come",
		Args: cobra.MinimumNArgs(1),
		Long: `End the wait for the outcome of a redrive before its time: the dead letter is PENDING again, or PARKED when its
redrives are used up. For a message that went where no consumer reads, or whose consumer is gone. --note is required. Should the
message be handled after all, its outcome still counts.`,
		Example:           `  redrive dlq release 7 --note "the queue has no consumer any more"`,
		ValidArgsFunction: a.completeIDs(dlq.Retrying),
		PreRunE: func(*cobra.Command, []string) error {
			if strings.TrimSpace(a.flags.note) == "" {
				return usagef("--note is required: say why no outcome will come")
			}
			return nil
		},
		RunE: a.managed(func(ctx context.Context, m *api, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return a.each(ctx, ids, "released", func(ctx context.Context, id int64) error {
				_, err := m.ReleaseEntry(context.WithoutCancel(ctx), id, a.by())
				return err
			})
		}),
	}
}

// changeAll changes what a filter selects.
func (a *app) changeAll(ctx context.Context, m *api, v *verb, filter wire.Filter) error {
	a.freeze(ctx, &filter)
	left := func(ctx context.Context) (int64, error) { return m.count(ctx, filter) }
	n, err := left(ctx)
	if err == nil && n == 0 {
		a.hint("no dead letters match")
	}
	if err != nil || n == 0 {
		return err
	}
	if err := a.confirm(ctx, string(v.do), n); err != nil {
		return err
	}
	done := &wire.BulkResult{}
	err = a.startBar(string(v.do), n).whileShrinking(ctx, n, left, func() error {
		changed, err := m.ChangeEntries(ctx, string(v.do), filter, a.by())
		if err == nil {
			done = changed
		}
		return err
	})
	if ctx.Err() != nil {
		done.Changed = shrunk(ctx, n, left)
	}
	for i := range done.Conflicts {
		_, _ = fmt.Fprintln(a.err, errorText(&done.Conflicts[i]))
	}
	err = a.ended(ctx, err, fmt.Sprintf("%d %s", done.Changed, v.past), "the same command continues with the rest")
	if err == nil && done.Refused > 0 {
		return &codedError{exitPartial, fmt.Sprintf("%d could not be %s", done.Refused, v.past)}
	}
	return err
}

// freeze keeps what dies after the count out of a change. A server's time is unknown: a clock here that is behind it
// leaves the latest dead letters out of the count and of the change alike.
func (a *app) freeze(ctx context.Context, filter *wire.Filter) {
	now := time.Now()
	if a.letters != nil {
		now = driver.Now(ctx, a.letters.Store())
	}
	filter.Freeze(now)
}

// shrunk is how many of n are not left after an interruption, which an interrupted request cannot report.
func shrunk(ctx context.Context, n int64, count func(context.Context) (int64, error)) int64 {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	left, err := count(ctx)
	if err != nil {
		return 0
	}
	return max(0, n-left)
}

// ended hints at what a command has done and, if it was interrupted, at how to continue.
func (a *app) ended(ctx context.Context, err error, done, next string) error {
	switch {
	case ctx.Err() != nil:
		a.hint("interrupted: %s; %s", done, next)
		return ctx.Err()
	case err == nil:
		a.hint("%s", done)
	}
	return err
}

// dryRun shows how many there are, and the first of them.
func (a *app) dryRun(ctx context.Context, m *api, f wire.Filter) error {
	const sample = 20
	n, err := m.count(ctx, f)
	if err != nil {
		return err
	}
	ids := int64(len(f.IDs))
	f.IDs = f.IDs[:min(len(f.IDs), maxIDs)]
	list, err := m.ListEntries(ctx, f, wire.Page{Order: driver.OldestFirst, Limit: sample})
	if err != nil {
		return err
	}
	a.hint("dry run: %s, nothing is changed", deadLetters(n))
	if ids > n {
		a.hint("%d of the ids would be refused: their state does not allow it, or they do not exist", ids-n)
	}
	return printList(a, list.Entries, entryColumns)
}

// confirm asks before many entries are changed.
func (a *app) confirm(ctx context.Context, what string, n int64) error {
	if a.flags.yes || n == 0 {
		return nil
	}
	question := what + " " + deadLetters(n)
	if !a.interactive() {
		return refusedf("%s: add --yes to do it, or --dry-run to look first", question)
	}
	return a.ask(ctx, question)
}

func (a *app) ask(ctx context.Context, question string) error {
	_, _ = fmt.Fprintf(a.err, "%s? [y/N] ", question)
	text, err := answer(ctx, func() (string, error) { return bufio.NewReader(a.in).ReadString('\n') })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && text == "" {
		return refusedf("no answer")
	}
	switch strings.ToLower(strings.TrimSpace(text)) {
	case "y", "yes":
		return nil
	}
	return refusedf("nothing was done")
}

// answer returns what read reads from the user, or the error of a ctx that ends before. read then stays blocked until
// the process ends.
func answer(ctx context.Context, read func() (string, error)) (text string, err error) {
	done := make(chan struct{})
	var got string
	var failed error
	go func() {
		defer close(done)
		got, failed = read()
	}()
	select {
	case <-done:
		return got, failed
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// each applies do to each entry, continues after an error, and reports at the end. do finishes the entry in flight when
// ctx ends, and returns the error of a ctx that ended before it began.
func (a *app) each(ctx context.Context, ids []int64, past string, do func(context.Context, int64) error) error {
	var (
		done   int
		faults []error
	)
	b := a.startBar(past, int64(len(ids)))
	defer b.end()
	for _, id := range ids {
		err := ctx.Err()
		if err == nil {
			err = do(ctx, id)
		}
		b.add(1)
		if err != nil && ctx.Err() != nil && errors.Is(err, context.Canceled) {
			b.end()
			a.hint("interrupted: %d of %d %s; the same command continues with the rest, whose first is %d", done, len(ids), past,
				id)
			return err
		}
		if err != nil {
			faults = append(faults, err)
			_, _ = fmt.Fprintln(a.err, errorText(err))
			continue
		}
		done++
	}
	b.end()
	if len(ids) != 1 || done == 1 {
		a.hint("%d %s", done, past)
	}
	switch {
	case len(faults) == 0:
		return nil
	case done > 0:
		return &codedError{exitPartial, fmt.Sprintf("%d of %d could not be %s", len(faults), len(ids), past)}
	default:
		return &codedError{exitCode(ctx, errors.Join(faults...)), "nothing was " + past}
	}
}

func (a *app) purgeCommand() *cobra.Command {
	var discarded, noArchive, dryRun bool
	olderThan := age(90 * duration.Day)
	cmd := &cobra.Command{
		Use: "purge", Short: "Remove closed dead letters that are old, after a copy to the archive", Args: cobra.NoArgs,
		Long: `Remove RESOLVED dead letters that were closed long ago, after a copy to the archive. What waits for a ` +
			`person is never removed.`,
		Example: `  redrive dlq purge --older-than 90d --dry-run
  redrive dlq purge --older-than 90d --yes`,
		RunE: a.managed(func(ctx context.Context, m *api, _ []string) error {
			scope := wire.PurgeScope{
				Statuses: []dlq.Status{dlq.Resolved}, ClosedBefore: olderThan.before(time.Now()),
			}
			if discarded {
				scope.Statuses = append(scope.Statuses, dlq.Discarded)
			}
			left := func(ctx context.Context) (int64, error) { return m.PreviewPurge(ctx, scope) }
			n, err := left(ctx)
			if err != nil {
				return err
			}
			if dryRun {
				a.hint("dry run: %s, nothing is changed", deadLetters(n))
				return nil
			}
			if err := a.confirm(ctx, "purge", n); err != nil {
				return err
			}
			purged, err := m.PurgeEntries(ctx, scope, noArchive, a.by())
			if ctx.Err() != nil {
				purged = int(shrunk(ctx, n, left))
			}
			return a.ended(ctx, err, fmt.Sprintf("%d purged", purged), "the same command continues with the rest")
		}),
	}
	cmd.Flags().Var(&olderThan, "older-than", "closed longer ago than this: 24h, 90d")
	cmd.Flags().BoolVar(&discarded, "discarded", false, "remove DISCARDED ones too")
	cmd.Flags().BoolVar(&noArchive, "no-archive", false, "remove without a copy")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "count, and change nothing")
	return cmd
}
