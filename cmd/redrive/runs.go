package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redrive-go/redrive/dlq/client"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/wait"
)

func (a *app) runsCommand() *cobra.Command {
	return group("runs", "Watch and steer redrive runs", "",
		a.runsListCommand(),
		a.runCommand("show ID", "Show a run and what happened to its entries", nil, (*app).showRun),
		a.runsWatchCommand(),
		a.runCommand("pause ID", "Pause a run; messages already sent are still handled",
			[]redrive.State{redrive.Running, redrive.Preparing}, steer((*client.Client).PauseRun)),
		a.runCommand("resume ID", "Continue a run that was paused, interrupted, or has stopped",
			[]redrive.State{redrive.Paused, redrive.Stopped, redrive.Running, redrive.Preparing}, (*app).resumeRun),
		a.runCommand("cancel ID", "End a run; waiting entries stay unchanged",
			[]redrive.State{redrive.Running, redrive.Paused, redrive.Stopped}, steer((*client.Client).CancelRun)),
		a.runsAdjustCommand(),
		a.runCommand("approve ID", "Approve a run that someone else has started",
			[]redrive.State{redrive.AwaitingApproval}, steer((*client.Client).ApproveRun)),
		a.runCommand("reject ID", "Cancel a run that waits for approval",
			[]redrive.State{redrive.AwaitingApproval}, steer((*client.Client).RejectRun)),
	)
}

func (a *app) runCommand(use, short string, states []redrive.State,
	do func(*app, context.Context, *api, string) error,
) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeRuns(states...),
		PreRunE:           func(*cobra.Command, []string) error { return a.checkOne() },
		RunE: a.managed(func(ctx context.Context, m *api, args []string) error {
			return do(a, ctx, m, args[0])
		}),
	}
}

func (a *app) completeRuns(states ...redrive.State) cobra.CompletionFunc {
	return completes(a, cobra.ShellCompDirectiveKeepOrder, func(ctx context.Context, m *api) []wire.Run {
		list, _ := m.ListRuns(ctx, wire.RunFilter{States: states}, wire.Page{})
		return cmp.Or(list, &wire.RunList{}).Runs
	}, func(r *wire.Run) string {
		return cobra.CompletionWithDesc(r.ID,
			fmt.Sprintf("%s, %s, by %s", r.State, deadLetters(r.Progress.Total), r.CreatedBy))
	})
}

func (a *app) runsListCommand() *cobra.Command {
	var (
		states []string
		page   wire.Page
		limit  int
	)
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List redrive runs, the newest first", Args: cobra.NoArgs,
		RunE: a.managed(func(ctx context.Context, m *api, _ []string) error {
			var filter wire.RunFilter
			for _, s := range states {
				filter.States = append(filter.States, redrive.State(s))
			}
			page.Limit = limit
			list, err := m.ListRuns(ctx, filter, page)
			if err != nil {
				return err
			}
			more := ""
			if list.Next != "" {
				more = "--after " + list.Next
			}
			return printPage(a, list.Runs, runColumns, "no runs", more)
		}),
	}
	cmd.Flags().StringSliceVar(&states, "state", nil,
		"preparing, awaiting_approval, running, paused, stopped, completed, cancelled")
	addLimit(cmd, &limit, 50)
	cmd.Flags().StringVar(&page.After, "after", "", "continue where an earlier listing ended")
	return cmd
}

var runColumns = []column[wire.Run]{
	{title: "Run", gives: whole, value: func(r wire.Run) string { return r.ID }},
	{title: "State", value: func(r wire.Run) string { return stateOf(&r) }},
	{title: "Done", right: true, value: func(r wire.Run) string { return driver.FormatID(r.Progress.Done) }},
	{title: "Of", right: true, value: func(r wire.Run) string { return driver.FormatID(r.Progress.Total) }},
	{
		title: "Succeeded", right: true, gives: drops,
		value: func(r wire.Run) string { return driver.FormatID(r.Counts.Succeeded) },
	},
	{title: "Failed", right: true, value: func(r wire.Run) string {
		return driver.FormatID(r.Counts.Failed + r.Counts.Lost)
	}},
	{
		title: "Skipped", right: true, gives: drops,
		value: func(r wire.Run) string { return driver.FormatID(r.Counts.Skipped) },
	},
	{title: "By", gives: drops, value: func(r wire.Run) string { return oneLine(r.CreatedBy, 30) }},
	{title: "Started", value: func(r wire.Run) string { return stampOf(r.CreatedAt) }},
	{title: "Note", wide: true, value: func(r wire.Run) string { return oneLine(r.Note, 60) }},
}

// stateOf is a run's state in words.
func stateOf(run *wire.Run) string {
	if run.Pausing() {
		return string(run.State) + ", then paused"
	}
	return string(run.State)
}

func (a *app) printRun(run *wire.Run) error {
	return a.printOne(run, func() string {
		c := run.Counts
		var out strings.Builder
		fmt.Fprintf(&out, "run %s: %s", run.ID, stateOf(run))
		if run.Cause != "" {
			out.WriteString(" (" + oneLine(prefixes.ReplaceAllString(run.Cause, "$1"), 200) + ")")
		}
		fmt.Fprintf(&out, "\n%d of %d done: %d succeeded, %d died again", c.Done(), c.Total(), c.Succeeded, c.Failed)
		for _, more := range []struct {
			n    int64
			what string
		}{{c.Lost, "without an outcome"}, {c.Skipped, "skipped"}, {c.Open(), "in flight"}, {c.Waiting, "waiting"}} {
			if more.n > 0 {
				fmt.Fprintf(&out, ", %d %s", more.n, more.what)
			}
		}
		return out.String() + "\n"
	})
}

func (a *app) showRun(ctx context.Context, m *api, id string) error {
	run, err := m.GetRun(ctx, id)
	if err != nil {
		return err
	}
	if err := a.printRun(run); err != nil || !a.textOutput() {
		return err
	}
	var troubled []wire.RunItem
	for _, state := range []redrive.ItemState{redrive.ItemFailed, redrive.ItemLost, redrive.ItemSkipped} {
		list, err := m.ListRunItems(ctx, id, wire.ItemFilter{State: state, Limit: 20})
		if err != nil {
			return err
		}
		troubled = append(troubled, list.Items...)
	}
	if len(troubled) == 0 {
		return nil
	}
	_, err = fmt.Fprintf(a.out, "\n%s\n", a.render(newTable(troubled, []column[wire.RunItem]{
		{title: "Entry", right: true, value: func(i wire.RunItem) string { return driver.FormatID(i.EntryID) }},
		{title: "State", value: func(i wire.RunItem) string { return string(i.State) }},
		{title: "Why", value: func(i wire.RunItem) string { return oneLine(i.Detail, 100) }},
	}, false, a.fit(a.flags.output))))
	if all := run.Counts.Failed + run.Counts.Lost + run.Counts.Skipped; int64(len(troubled)) < all {
		a.hint("there are more: these are %d of %d; GET /api/v1/runs/%s/items of a server lists all", len(troubled), all, id)
	}
	return err
}

// steer makes a command for a change to a run.
func steer(do func(*client.Client, context.Context, string, client.By) (*wire.Run, error),
) func(*app, context.Context, *api, string) error {
	return func(a *app, ctx context.Context, m *api, id string) error {
		run, err := do(m.Client, ctx, id, a.by())
		if err != nil {
			return err
		}
		if run.State == redrive.Running && m.runner != nil { // approved: nothing here sends it
			a.hint("a running redrive serve continues it; without one, redrive runs resume %s does", id)
		}
		return a.printRun(run)
	}
}

func (a *app) runsAdjustCommand() *cobra.Command {
	var (
		speed, stop float64
		maxOut      int
		flags       *pflag.FlagSet
	)
	cmd := a.runCommand("adjust ID", "Change the speed and the bounds of a run that has not ended",
		[]redrive.State{redrive.Running, redrive.Paused, redrive.Stopped},
		func(a *app, ctx context.Context, m *api, id string) error {
			before, err := m.GetRun(ctx, id)
			if err != nil {
				return err
			}
			var change wire.RunAdjustment
			if flags.Changed("rate") {
				change.Rate = &speed
			}
			if flags.Changed("max-out") {
				change.MaxOut = &maxOut
			}
			if flags.Changed("stop-above") {
				change.Stop = &wire.StopCondition{Share: stop, MinSample: before.Spec.Stop.MinSample}
			}
			run, err := m.AdjustRun(ctx, id, change, a.by())
			if err != nil {
				return err
			}
			out := "any number"
			if run.Spec.MaxOut > 0 {
				out = fmt.Sprintf("at most %d", run.Spec.MaxOut)
			}
			a.hint("%s, %s without an outcome at once, stops when more than %.3g%% fail", pace(run.Spec.Rate), out,
				100*run.Spec.Stop.Share)
			return a.printRun(run)
		})
	cmd.Long = `Change the speed and the bounds of a run that has not ended, while it runs or before it continues. What is not given stays.

What a second person has approved may be slowed down, not loosened.`
	cmd.Example = `  redrive runs adjust ID --rate 5 --note "the bank is slow today"
  redrive runs adjust ID --rate 0 --max-out 1000`
	flags = cmd.Flags()
	flags.Func("rate", "`messages` a second at most; 0 is as fast as possible", perSecond(&speed))
	flags.IntVar(&maxOut, "max-out", 0, "at most this many sent and without an outcome yet (0 is 10000; -1 for no bound)")
	flags.Func("stop-above", "stop when the `share` of failures is above this; 1 never stops", share(&stop))
	cmd.MarkFlagsOneRequired("rate", "max-out", "stop-above")
	return cmd
}

func (a *app) resumeRun(ctx context.Context, _ *api, id string) error {
	manager, err := a.redriver(ctx)
	if err != nil {
		return err
	}
	run, err := manager.GetRun(ctx, id)
	if err != nil {
		return err
	}
	if run.State != redrive.Running && (run.State != redrive.Preparing || run.Pausing()) {
		lasting, stop := answered(ctx, manager)
		defer stop()
		if _, err := manager.ResumeRun(lasting, id, a.by()); err != nil && ctx.Err() == nil { // else it may be resumed
			return err
		}
	}
	return a.drive(ctx, manager, id)
}

// runsWatchCommand reports that the run continues even if it is interrupted before it shows anything.
func (a *app) runsWatchCommand() *cobra.Command {
	cmd := a.runCommand("watch ID", "Watch a run until it ends or needs someone", nil,
		func(a *app, ctx context.Context, m *api, id string) error {
			last, err := a.follow(ctx, m, id)
			if err != nil {
				return err
			}
			return a.finish(last)
		})
	watch := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := watch(cmd, args)
		if cmd.Context().Err() != nil {
			a.hint("interrupted, but run %[1]s continues without you; redrive runs watch %[1]s shows it again", args[0])
		}
		return err
	}
	return cmd
}

// drive shows the progress of a run until it ends or needs a person. This process drives it, unless a server does. An
// interruption pauses it.
func (a *app) drive(ctx context.Context, m *api, id string) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	driven := make(chan error, 1)
	if m.runner != nil {
		go func() {
			_, err := m.runner.Drive(ctx, id)
			stop()
			driven <- err
		}()
	}
	run, err := a.follow(watching, m, id)
	if m.runner != nil { // what could not be shown does not matter
		if err = <-driven; err == nil {
			run, err = m.GetRun(ctx, id)
		}
	}
	if ctx.Err() != nil {
		return a.interrupted(ctx, m, id)
	}
	if err != nil {
		return err
	}
	return a.finish(run)
}

// answered returns a context for a request that makes a run work. It outlives an interruption until a server has
// answered, for ten seconds at most: a pause that reaches the server first would find nothing to pause, and the run
// would work.
func answered(ctx context.Context, m *api) (lasting context.Context, stop func()) {
	if m.runner != nil { // a store has ended the request when it returns
		return ctx, func() {}
	}
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(10*time.Second, cancel) })
	return lasting, cancel
}

// interrupted pauses a run, which may not exist yet or have ended. ctx has ended.
func (a *app) interrupted(ctx context.Context, m *api, id string) error {
	cause := ctx.Err()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	by := a.by()
	by.Note = strings.TrimPrefix(by.Note+", interrupted", ", ")
	switch _, err := m.PauseRun(ctx, id, by); {
	case err == nil:
		a.hint("interrupted: run %s is paused; to continue: redrive runs resume %s", id, id)
	case statusOf(err) == http.StatusConflict:
		a.hint("interrupted: run %s was not running: redrive runs show %s", id, id)
	case statusOf(err) != http.StatusNotFound:
		return errors.Join(cause, err)
	}
	return cause
}

// finish prints how a run ended and turns that into the exit code.
func (a *app) finish(run *wire.Run) error {
	if err := a.printRun(run); err != nil {
		return err
	}
	bad := run.Counts.Failed + run.Counts.Lost + run.Counts.Skipped
	fault := "the run is " + stateOf(run)
	switch {
	case run.State == redrive.AwaitingApproval:
		a.hint("it waits for someone other than %s: redrive runs approve %s, or reject", run.CreatedBy, run.ID)
		return nil
	case run.State == redrive.Completed && bad == 0:
		return nil
	case run.State == redrive.Completed:
		fault = fmt.Sprintf("%d of %d did not succeed: redrive runs show %s", bad, run.Progress.Total, run.ID)
	case run.State == redrive.Stopped:
		fault = "the run has stopped: " + cmp.Or(oneLine(run.Cause, 200), "too many died again") +
			"\n  what died again: redrive runs show " + run.ID + "\n  to continue:     redrive runs resume " + run.ID
	case run.State == redrive.Paused, run.Pausing():
		fault += "\n  to continue: redrive runs resume " + run.ID
	}
	return &codedError{exitPartial, fault}
}

// follow shows the progress of a run, to people only, until it has ended, needs someone, or ctx ends. It returns the
// last state of the run.
func (a *app) follow(ctx context.Context, m *api, id string) (*wire.Run, error) {
	var last *wire.Run
	b := a.startBar("redriving", 0)
	defer b.end()
	show := func(run *wire.Run) {
		last = run
		b.set(run.Progress.Done, run.Progress.Total, fmt.Sprintf("%s, %d died again", run.State, run.Counts.Failed))
	}
	every := watchServer
	if m.runner != nil {
		every = watchLocal
	}
	for {
		run, err := m.GetRun(ctx, id)
		if err == nil {
			show(run)
			if run.Pausing() || run.State != redrive.Preparing && run.State != redrive.Running {
				return last, nil // what is out of it may report in an hour, or never; nor need anyone prepare it
			}
			_ = wait.For(ctx, every)
			err = ctx.Err() // not its cause, which names a signal
		}
		if err != nil {
			leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			if run, again := m.GetRun(leaving, id); again == nil { // as it was left
				show(run)
			}
			return last, err
		}
	}
}
