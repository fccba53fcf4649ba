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

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/duration"
	"github.com/redrive-go/redrive/internal/wait"
)

func (a *app) dlqCommand() *cobra.Command {
	cmd := group("dlq", "List, look at, group, redrive and close dead letters", "",
		a.listCommand(), a.showCommand(), a.groupsCommand(), a.statsCommand(), a.reportCommand(), a.tailCommand(),
		a.redriveCommand(), a.editCommand(), a.exportCommand(), a.importCommand(), a.purgeCommand(), a.releaseCommand(),
		a.muteCommand(), a.unmuteCommand(), a.mutesCommand())
	cmd.AddCommand(a.verbCommands()...)
	return cmd
}

func (a *app) listCommand() *cobra.Command {
	var (
		filter      filterFlags
		limit       int
		all, oldest bool
		after       string
	)
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List dead letters, the newest first", Args: cobra.NoArgs,
		Example: `  redrive dlq list --topic orders --older-than 1h
  redrive dlq list --error timeout -o csv --all > timeouts.csv
  redrive dlq list --jq '.[] | [.id, .error_message] | @tsv'`,
		RunE: a.managed(func(ctx context.Context, m *api, _ []string) error {
			page := wire.Page{Limit: limit, After: after}
			if oldest {
				page.Order = driver.OldestFirst
			}
			if all {
				page.Limit = driver.MaxPage
			}
			entries, next, err := pages(a, page, all, entryColumns, func(page wire.Page) ([]wire.Entry, string, error) {
				list, err := m.ListEntries(ctx, filter.selected, page)
				list = cmp.Or(list, &wire.EntryList{}) // nil after an error
				return list.Entries, list.Next, err
			})
			if err != nil {
				return err
			}
			if next != "" {
				next = "--all, or --after " + next
			}
			return printPage(a, entries, entryColumns, "no dead letters match", next)
		}),
	}
	filter.add(a, cmd, dlq.Pending)
	addLimit(cmd, &limit, 50)
	cmd.Flags().BoolVar(&all, "all", false, "all that match")
	cmd.Flags().BoolVar(&oldest, "oldest", false, "the oldest first")
	cmd.Flags().StringVar(&after, "after", "", "continue where an earlier listing ended")
	cmd.MarkFlagsMutuallyExclusive("all", "after")
	cmd.MarkFlagsMutuallyExclusive("all", "limit")
	return cmd
}

// pages lists a page, or that and all after it. Where the format is lines, and columns are given, it prints all pages
// but the last, which it returns, so that a long list does not need more memory than a short one.
func pages[T any](a *app, page wire.Page, all bool, columns []column[T], list func(wire.Page) ([]T, string, error)) (
	items []T, next string, err error,
) {
	lines := columns != nil && (a.format() == "csv" || a.format() == "jsonl")
	for {
		var found []T
		found, next, err = list(page)
		if lines && len(items) > 0 && len(found) > 0 {
			err, items = printList(a, items, columns), nil
		}
		items = append(items, found...)
		if err != nil || !all || next == "" {
			return items, next, err
		}
		page.After = next
	}
}

func (a *app) groupsCommand() *cobra.Command {
	var (
		query  wire.GroupQuery
		status string
		limit  int
	)
	cmd := &cobra.Command{
		Use: "groups", Short: "Group dead letters by cause, the largest first", Args: cobra.NoArgs,
		Long: "Group dead letters by cause: errors that differ only in numbers, ids and quoted values are one.",
		Example: `  redrive dlq groups
  redrive dlq redrive --fingerprint "$(redrive dlq groups --jq '.[0].fingerprint')"`,
		RunE: a.managed(func(ctx context.Context, m *api, _ []string) error {
			if status != "any" {
				parsed, err := wire.ParseStatus(status)
				if err != nil {
					return usagef("--status: %v", err)
				}
				query.Status = parsed
			}
			query.Limit = limit
			list, err := m.ListGroups(ctx, query)
			if err != nil {
				return err
			}
			more := ""
			if list.Incomplete {
				more = fmt.Sprintf("--limit, up to %d, or --handler, --class and --error", driver.MaxPage)
			}
			return printPage(a, list.Groups, groupColumns(query.Status), "no dead letters match", more)
		}),
	}
	cmd.Flags().StringVar(&status, "status", "pending", "count the entries in this status, or any")
	cmd.Flags().StringVar(&query.Handler, "handler", "", "handler that gave up")
	cmd.Flags().StringVar(&query.ErrorClass, "class", "", "error class")
	cmd.Flags().StringVar(&query.CauseText, "error", "", "text that occurs in the cause")
	addLimit(cmd, &limit, 10)
	return cmd
}

// groupColumns count the entries in the status, or all.
func groupColumns(status wire.Status) []column[wire.Group] {
	return []column[wire.Group]{
		{title: "Group", gives: whole, value: func(g wire.Group) string { return g.Fingerprint }},
		{title: "Count", right: true, value: func(g wire.Group) string {
			if status == "" {
				return driver.FormatID(g.Counts.Total())
			}
			return driver.FormatID(g.Counts.Of(status))
		}},
		{title: "Handler", gives: drops, value: func(g wire.Group) string { return oneLine(g.Handler, 32) }},
		{title: "Cause", value: func(g wire.Group) string { return oneLine(g.Cause, 70) }},
		{title: "Class", wide: true, value: func(g wire.Group) string { return oneLine(g.ErrorClass, 40) }},
		{title: "First", wide: true, value: func(g wire.Group) string { return stampOf(g.FirstSeen) }},
		{title: "Last", value: func(g wire.Group) string { return stampOf(g.LastSeen) }},
		{title: "Sample", wide: true, value: func(g wire.Group) string { return oneLine(g.Sample, 70) }},
	}
}

func (a *app) statsCommand() *cobra.Command {
	since := age(7 * duration.Day)
	cmd := &cobra.Command{
		Use: "stats", Short: "Count dead letters by status, topic, type, cause and hour", Args: cobra.NoArgs,
		RunE: a.managed(func(ctx context.Context, m *api, _ []string) error {
			stats, err := m.GetStats(ctx, wire.StatsQuery{Since: since.before(time.Now())})
			if err != nil {
				return err
			}
			return a.printOne(stats, func() string { return a.statsText(stats) })
		}),
	}
	cmd.Flags().Var(&since, "since", "how far back the hourly curve goes: 24h, 7d")
	return cmd
}

// hourLayout is how the curve names an hour: always as a time of day, even where other times are relative.
const hourLayout = "2006-01-02 15:04Z"

func (a *app) statsText(stats *wire.Stats) string {
	var out strings.Builder
	var counts []string
	for _, s := range wire.Statuses() {
		counts = append(counts, fmt.Sprintf(" %d %s", stats.Counts.Of(s), strings.ToLower(string(s))))
	}
	fmt.Fprintf(&out, "%s:%s\n", deadLetters(stats.Counts.Total()), strings.Join(counts, ","))
	if !stats.OldestPending.IsZero() {
		fmt.Fprintf(&out, "the oldest pending one died at %s\n", stampOf(stats.OldestPending))
	}
	if mean := stats.MeanResolution.Duration(); mean > 0 {
		fmt.Fprintf(&out, "mean time to resolution %s\n", mean.Round(time.Second))
	}
	columns := []column[wire.NamedCounts]{
		{title: "Topic", value: func(n wire.NamedCounts) string { return oneLine(n.Name, 40) }},
		{title: "Total", right: true, value: func(n wire.NamedCounts) string { return driver.FormatID(n.Counts.Total()) }},
	}
	for _, s := range wire.Statuses() {
		columns = append(columns, column[wire.NamedCounts]{
			title: string(s), right: true,
			value: func(n wire.NamedCounts) string { return driver.FormatID(n.Counts.Of(s)) },
		})
	}
	writeTable(a, &out, stats.ByTopic, columns)
	writeTable(a, &out, stats.TopCauses, groupColumns(dlq.Pending))
	writeTable(a, &out, stats.Hourly, []column[wire.HourCount]{
		{title: "Hour", value: func(h wire.HourCount) string { return h.Hour.UTC().Format(hourLayout) }},
		{title: "Died", right: true, value: func(h wire.HourCount) string { return driver.FormatID(h.Count) }},
		{title: "Died again", right: true, value: func(h wire.HourCount) string { return driver.FormatID(h.DiedAgain) }},
		{title: "Closed", right: true, value: func(h wire.HourCount) string { return driver.FormatID(h.Closed) }},
	})
	return out.String()
}

func (a *app) reportCommand() *cobra.Command {
	since := age(7 * duration.Day)
	cmd := &cobra.Command{
		Use: "report", Short: "Report which causes are new, grow, return or are gone, as Markdown or JSON",
		Args: cobra.NoArgs,
		Long: `Compare the causes of the last week, or of --since, with those of the same time before: which are new, which grow, which have come
back, which have stopped. The report is Markdown; -o json is for programs. Run it weekly.`,
		Example: `  redrive dlq report
  redrive dlq report --since 24h -o json --jq '.new[].cause'`,
		RunE: a.managed(func(ctx context.Context, m *api, _ []string) error {
			period := time.Duration(since)
			if period < time.Hour || period%time.Hour != 0 {
				return usagef("--since %s: whole hours, one at least", &since)
			}
			report, err := m.GetReport(ctx, int(period/time.Hour))
			if err != nil {
				return err
			}
			return a.printOne(report, func() string { return printable(report.Markdown(), true) })
		}),
	}
	cmd.Flags().Var(&since, "since", "how far back; it is compared with the same period before: 24h, 7d, 30d")
	return cmd
}

// tailBack is how many ids a look goes back: a database assigns ids before it commits, so that a letter may appear
// after one with a greater id.
const tailBack = 500

// tail follows the letters that a filter selects, in the order in which they are stored.
type tail struct {
	app     *app
	manager *api
	filter  wire.Filter
	last    int64          // the greatest id that was seen
	seen    map[int64]bool // of those that a look may find again
}

func (a *app) tailCommand() *cobra.Command {
	var (
		filter filterFlags
		lines  int
		every  time.Duration
		follow bool
	)
	cmd := &cobra.Command{
		Use: "tail", Short: "Show the latest dead letters, and new ones as they arrive", Args: cobra.NoArgs,
		RunE: a.managed(func(ctx context.Context, m *api, _ []string) error {
			if a.flags.output != "table" && a.flags.output != "jsonl" || a.flags.jq != "" {
				return usagef("tail prints lines: -o jsonl or nothing, and no --jq")
			}
			if every <= 0 {
				return usagef("--every %s: must be positive", every)
			}
			t := &tail{app: a, manager: m, filter: filter.selected, seen: map[int64]bool{}}
			if err := t.begin(ctx, lines); err != nil || !follow {
				return err
			}
			for wait.For(ctx, every) == nil {
				if err := t.look(ctx); err != nil {
					return err
				}
			}
			return ctx.Err()
		}),
	}
	filter.add(a, cmd)
	cmd.Flags().IntVarP(&lines, "lines", "n", 10, "begin with this many of the latest")
	cmd.Flags().BoolVarP(&follow, "follow", "f", true, "continue until interrupted")
	every = time.Second
	cmd.Flags().Var((*age)(&every), "every", "how often to look")
	return cmd
}

// begin shows the last lines, and remembers them.
func (t *tail) begin(ctx context.Context, lines int) error {
	list, err := t.manager.ListEntries(ctx, t.filter,
		wire.Page{Order: driver.StoredLast, Limit: min(max(lines, tailBack), driver.MaxPage)})
	if err != nil {
		return err
	}
	for i, e := range slices.Backward(list.Entries) {
		if err := t.see(&e, i < lines); err != nil {
			return err
		}
	}
	return nil
}

// look shows the dead letters stored since the last look.
func (t *tail) look(ctx context.Context) error {
	from := wire.Cursor{Order: driver.StoredFirst, At: time.Unix(0, 0), ID: max(0, t.last-tailBack)}
	page := wire.Page{Order: driver.StoredFirst, Limit: driver.MaxPage, After: from.String()}
	for e, err := range t.manager.Entries(ctx, t.filter, page) {
		if err == nil {
			err = t.see(e, true)
		}
		if err != nil {
			return err
		}
	}
	maps.DeleteFunc(t.seen, func(id int64, _ bool) bool { return id <= t.last-tailBack })
	return nil
}

func (t *tail) see(e *wire.Entry, show bool) error {
	if t.seen[e.ID] {
		return nil
	}
	t.seen[e.ID] = true
	t.last = max(t.last, e.ID)
	switch {
	case !show:
		return nil
	case t.app.flags.output == "jsonl":
		return t.app.printJSON(e, false)
	}
	_, err := fmt.Fprintf(t.app.out, "%s  %d  %s  %s  %s\n", stampOf(e.CreatedAt), e.ID, oneLine(e.Topic, 40),
		oneLine(e.Reason, 40), oneLine(e.ErrorMessage, 100))
	return err
}
