package main

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

type redriveFlags struct {
	filter                    filterFlags
	spec                      wire.RunSpec // without the filter
	dryRun, detach, rateGiven bool
}

func (a *app) redriveCommand() *cobra.Command {
	var f redriveFlags
	cmd := &cobra.Command{
		Use: "redrive [ID...]", Short: "Send dead letters back to where they came from", Args: f.filter.idsOrFilter,
		Long: `Send dead letters back to the consumer that they came from.

With ids (7 9 12-20) each is sent at once. A redriven entry is RETRYING until its consumer reports: RESOLVED if it succeeded, PENDING
again if it died again. Entries that were collected from a broker are RESOLVED when the broker confirms.

With a filter it starts a redrive run over the entries that match now; entries that die later are not part of it. --dry-run shows them
first. A run asks before it begins (--yes answers), shows its progress, waits for the outcomes, and stops automatically when too many
messages die again. Ctrl-C pauses it; redrive runs resume continues it. --detach leaves the work to redrive serve.`,
		Example: `  redrive dlq redrive 7 9 --config redrive.yaml
  redrive dlq redrive --topic orders --dry-run
  redrive dlq redrive --topic orders --rate 50 --canary 1,10,100 --config redrive.yaml
  redrive dlq redrive --fingerprint 1f0c9f7a1b2c3d4e --transform '.currency //= "EUR"' --yes --config redrive.yaml`,
		ValidArgsFunction: a.completeIDs(dlq.Pending, dlq.Parked),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.rateGiven = cmd.Flags().Changed("rate")
			if len(args) > 0 {
				return a.redriveIDs(cmd.Context(), &f)
			}
			if err := a.checkOne(); err != nil {
				return err
			}
			return a.redriveRun(cmd.Context(), &f)
		},
	}
	f.filter.add(a, cmd, dlq.Pending)
	flags := cmd.Flags()
	flags.Func("rate", "`messages` a second at most; 0 is as fast as possible (default redrive.rate of the configuration, "+
		"or of the server's)", perSecond(&f.spec.Rate))
	flags.BoolVar(&f.dryRun, "dry-run", false, "show what would be sent, and send nothing")
	flags.Int64Var(&f.spec.Limit, "limit", 0, withFilter+"at most this many, the oldest first")
	flags.IntSliceVar(&f.spec.Canary, "canary", nil,
		withFilter+"sizes of first steps, each of which waits for its outcomes: 1,10,100")
	flags.IntVar(&f.spec.MaxOut, "max-out", 0, withFilter+"at most this many sent and without an outcome yet (default 10000; -1 "+
		"for no bound)")
	f.spec.Stop.Share = 0.1
	flags.Func("stop-above", withFilter+"stop when the `share` of failures is above this; 1 never stops (default 0.1)",
		share(&f.spec.Stop.Share))
	flags.StringVar(&f.spec.ID, "id", "", withFilter+"id of the run, so that starting it twice is refused (default a new "+
		"UUID)")
	flags.StringVar(&f.spec.JQ, "transform", "",
		withFilter+"jq expression that changes each payload; the original is kept")
	flags.StringVar(&f.spec.Target, "target", "", withFilter+"name of a destination other than the message's origin")
	flags.Var((*age)(&f.spec.OutcomeTimeout), "outcome-timeout",
		withFilter+"how long a consumer may take to report (default redrive.outcome_timeout of the configuration, or of the "+
			"server's, which is 1h if not given)")
	flags.BoolVar(&f.spec.CloseOnPublish, "close-on-publish", false,
		withFilter+"close each entry when the broker confirms it, for consumers that do not report")
	flags.BoolVar(&f.detach, "detach", false, withFilter+"start the run and leave it to redrive serve")
	return cmd
}

// redriveIDs sends entries one by one.
func (a *app) redriveIDs(ctx context.Context, f *redriveFlags) error {
	ids := f.filter.ids
	if f.dryRun {
		looker, err := a.looker(ctx)
		if err != nil {
			return err
		}
		if err := a.dryRun(ctx, looker, wire.Filter{IDs: ids, Statuses: driver.From(driver.ActionRedrive)}); err != nil {
			return err
		}
		spec := wire.RunSpec{Filter: wire.Filter{IDs: ids[:min(len(ids), maxBodyIDs)]}}
		p, err := looker.PreviewRun(ctx, spec, min(len(ids), maxSample))
		if err != nil {
			return err
		}
		a.warn(p)
		return nil
	}
	manager, err := a.redriver(ctx)
	if err != nil {
		return err
	}
	speed, err := f.speed(ctx, manager)
	if err != nil {
		return err
	}
	limiter := rate.NewLimiter(rate.Inf, 1)
	if speed > 0 {
		limiter.SetLimit(rate.Limit(speed))
	}
	return a.each(ctx, ids, "redriven", func(ctx context.Context, id int64) error {
		if err := limiter.Wait(ctx); err != nil {
			return err
		}
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_, err := manager.RedriveEntry(work, id, a.by())
		return err
	})
}

// speed is the rate of the flag, or else the default of the server's or this process's configuration.
func (f *redriveFlags) speed(ctx context.Context, m *api) (float64, error) {
	if f.rateGiven {
		return f.spec.Rate, nil
	}
	me, err := m.GetMe(ctx)
	return cmp.Or(me, &wire.Me{}).RedriveRate, err
}

// redriveRun starts a run and drives it.
func (a *app) redriveRun(ctx context.Context, f *redriveFlags) error {
	open := a.redriver
	if f.dryRun || f.detach { // nothing is sent from here
		open = a.looker
	}
	manager, err := open(ctx)
	if err != nil {
		return err
	}
	spec := f.spec
	spec.Filter = f.filter.selected
	if spec.Rate, err = f.speed(ctx, manager); err != nil {
		return err
	}
	a.freeze(ctx, &spec.Filter)
	preview, err := manager.PreviewRun(ctx, spec, 0)
	if err != nil {
		return err
	}
	switch {
	case f.dryRun:
		return a.printOne(preview, func() string { return a.previewText(preview) })
	case preview.Count == 0:
		a.hint("no dead letters match")
		return nil
	}
	a.announce(ctx, manager, preview, &spec)
	if err := a.confirm(ctx, "redrive", preview.Count); err != nil {
		return err
	}
	spec.ID = cmp.Or(spec.ID, uuid.Must(uuid.NewV7()).String())
	_, before := manager.GetRun(ctx, spec.ID) // one whose id was given may exist, and be someone else's
	lasting, stop := answered(ctx, manager)
	defer stop()
	run, err := manager.StartRun(lasting, spec, a.by())
	if f.spec.ID == "" && statusOf(err) == http.StatusConflict { // it was sent twice, because the answer was lost
		run, err = manager.GetRun(ctx, spec.ID)
	}
	switch {
	case ctx.Err() != nil && statusOf(before) == http.StatusNotFound:
		return a.interrupted(ctx, manager, spec.ID)
	case err != nil:
		return err
	case run.State == redrive.AwaitingApproval:
		a.hint("run %s waits for a second person: redrive runs approve %s", run.ID, run.ID)
		return a.printRun(run)
	case f.detach:
		a.hint("run %s is left to redrive serve; redrive runs watch %s shows it", run.ID, run.ID)
		return a.printRun(run)
	}
	return a.drive(ctx, manager, run.ID)
}

// announce shows what a question is about: the topics, the most frequent causes, and how it is sent.
func (a *app) announce(ctx context.Context, m *api, p *wire.RunPreview, spec *wire.RunSpec) {
	if a.flags.yes || !a.interactive() {
		return
	}
	for _, t := range p.Topics {
		a.hint("  %7d  %s", t.Count, oneLine(t.Topic, 60))
	}
	// the question can be asked without this
	if list, err := m.ListEntries(ctx, spec.Filter, wire.Page{Limit: announced}); err == nil {
		causes, order := map[string]int{}, []string{}
		for i := range list.Entries {
			cause := oneLine(list.Entries[i].Cause, 60)
			if causes[cause]++; causes[cause] == 1 {
				order = append(order, cause)
			}
		}
		slices.SortStableFunc(order, func(x, y string) int { return causes[y] - causes[x] })
		for _, cause := range order[:min(len(order), 3)] {
			a.hint("  because  %s (%d of the last %d)", cause, causes[cause], len(list.Entries))
		}
	}
	a.warn(p)
	how := pace(spec.Rate)
	if len(spec.Canary) > 0 {
		how += ", in first steps of " + strings.Trim(strings.Join(strings.Fields(fmt.Sprint(spec.Canary)), ", "), "[]")
	}
	a.hint("  to       %s, %s", cmp.Or(oneLine(spec.Target, 60), "where each came from"), how)
}

// warn warns about destinations that no consumer reads.
func (a *app) warn(p *wire.RunPreview) {
	for _, text := range warnings(p) {
		a.hint("  warning: %s", oneLine(text, 200))
	}
}

// pace is a run's rate in words.
func pace(rate float64) string {
	if rate > 0 {
		return fmt.Sprintf("at most %g a second", rate)
	}
	return "as fast as possible"
}

// announced is how many dead letters a question's causes are taken from.
const announced = 200

// maxSample is the most entries that a preview looks at.
const maxSample = 100

func warnings(p *wire.RunPreview) []string {
	var texts []string
	for i := range p.Destinations {
		if text := p.Destinations[i].Warning(); text != "" {
			texts = append(texts, prefixes.ReplaceAllString(text, "$1"))
		}
	}
	return texts
}

func (a *app) previewText(p *wire.RunPreview) string {
	var out strings.Builder
	fmt.Fprintf(&out, "dry run: %s would be redriven, nothing is changed\n", deadLetters(p.Count))
	for _, t := range p.Topics {
		fmt.Fprintf(&out, "  %7d  %s\n", t.Count, oneLine(t.Topic, 60))
	}
	for _, text := range warnings(p) {
		out.WriteString("warning: " + oneLine(text, 200) + "\n")
	}
	if p.NeedsApproval {
		out.WriteString("a second person would have to approve it\n")
	}
	entries := make([]wire.Entry, 0, len(p.Sample))
	for i := range p.Sample {
		entries = append(entries, p.Sample[i].Entry.Entry)
	}
	writeTable(a, &out, entries, entryColumns)
	for i := range p.Sample {
		switch s := &p.Sample[i]; {
		case s.Problem != "":
			fmt.Fprintf(&out, "\nentry %d: %s\n", s.Entry.ID, oneLine(s.Trouble(), 200))
		case s.Diff != nil:
			fmt.Fprintf(&out, "\nentry %d\n%s", s.Entry.ID, indent(printable(s.Diff.String(), true)))
		}
	}
	return out.String()
}
