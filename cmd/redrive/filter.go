package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/internal/duration"
)

// filterFlags are the flags that select entries.
type filterFlags struct {
	statuses             []string
	olderThan, newerThan string
	from, to             string
	fields               []string
	filter               wire.Filter
	defaultStatus        []dlq.Status
	names                []string    // of the flags that select
	selected             wire.Filter // by the flags, before the command runs
	ids                  []int64     // given as arguments
}

// add declares the flags. statuses are those selected without --status.
func (f *filterFlags) add(a *app, cmd *cobra.Command, statuses ...dlq.Status) {
	f.defaultStatus = statuses
	flags := cmd.Flags()
	flags.StringSliceVar(&f.statuses, "status", nil, "pending, retrying, resolved, discarded, ... or any (default "+
		cmp.Or(strings.Join(lower(statuses), ","), "any")+")")
	flags.StringVar(&f.filter.Topic, "topic", "", "topic that the message was consumed from")
	flags.StringVar(&f.filter.Consumer, "consumer", "", "queue or consumer group")
	flags.StringVar(&f.filter.EventType, "event", "", "event type")
	flags.StringVar(&f.filter.Handler, "handler", "", "handler that gave up")
	flags.StringVar(&f.filter.Reason, "reason", "", "permanent, exhausted, malformed, expired, panic, manual or crash")
	flags.StringVar(&f.filter.ErrorClass, "class", "", "error class")
	flags.StringVar(&f.filter.ErrorCode, "code", "", "error code")
	flags.StringVar(&f.filter.Fingerprint, "fingerprint", "", "group, as dlq groups shows it")
	flags.StringVar(&f.filter.EventID, "message-id", "", "id of the message")
	flags.StringVar(&f.filter.CorrelationID, "correlation-id", "", "correlation id")
	flags.StringVar(&f.filter.TraceID, "trace-id", "",
		"W3C trace of the message (reads the headers of all that the other flags select)")
	flags.StringVar(&f.filter.SourceTable, "source-table", "", "table of the business record")
	flags.StringVar(&f.filter.SourceID, "source-id", "", "id of the business record")
	flags.StringVar(&f.filter.ErrorText, "error", "", "text that occurs in the error")
	flags.StringVar(&f.filter.PayloadText, "payload", "",
		"text that occurs in the payload (reads every payload that the other flags select)")
	flags.StringArrayVar(&f.fields, "field", nil,
		"field of the JSON payload and its value: customer.id=42; may be repeated (reads payloads too)")
	flags.StringVar(&f.filter.Run, "run", "", "redrive run that took the entry last")
	flags.StringVar(&f.olderThan, "older-than", "", "created longer ago than this: 90m, 24h, 30d")
	flags.StringVar(&f.newerThan, "newer-than", "", "created within this: 90m, 24h, 30d")
	flags.StringVar(&f.from, "from", "", "created at or after: 2025-11-20 or 2025-11-20T07:30:00Z")
	flags.StringVar(&f.to, "to", "", "created before")
	cmd.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if f.ids, err = parseIDs(args); err == nil {
			f.selected, err = f.read(time.Now())
		}
		return err
	}
	flags.VisitAll(func(flag *pflag.Flag) { f.names = append(f.names, flag.Name) })
	f.complete(a, cmd)
}

// lower are statuses as flags spell them.
func lower(statuses []dlq.Status) []string {
	names := make([]string, len(statuses))
	for i, s := range statuses {
		names[i] = strings.ToLower(string(s))
	}
	return names
}

// complete adds the completions of the flags' values.
func (*filterFlags) complete(a *app, cmd *cobra.Command) {
	statuses := append([]string{"any"}, lower(wire.Statuses())...)
	for name, values := range map[string]cobra.CompletionFunc{
		"topic":       a.completeTopics(),
		"fingerprint": a.completeGroups(),
		"status":      cobra.FixedCompletions(statuses, cobra.ShellCompDirectiveNoFileComp),
		"reason": cobra.FixedCompletions(
			[]string{"permanent", "exhausted", "malformed", "expired", "panic", "manual", "crash"},
			cobra.ShellCompDirectiveNoFileComp),
	} {
		must(cmd.RegisterFlagCompletionFunc(name, values))
	}
}

// withFilter begins the usage of a flag that has no meaning for ids.
const withFilter = "with a filter: "

// idsOrFilter requires ids or a filter, and never selects everything by omission.
func (f *filterFlags) idsOrFilter(cmd *cobra.Command, args []string) (err error) {
	switch given := slices.ContainsFunc(f.names, cmd.Flags().Changed); {
	case len(args) > 0 && given:
		return usagef("give ids or a filter, not both")
	case len(args) > 0:
		cmd.Flags().Visit(func(flag *pflag.Flag) {
			if strings.HasPrefix(flag.Usage, withFilter) {
				err = usagef("--%s needs a filter: with ids it would be ignored", flag.Name)
			}
		})
		return err
	case len(args) == 0 && !given:
		return usagef("which ones? Give ids, or a filter such as --topic orders (--status pending selects all that wait)")
	default:
		return nil
	}
}

// read makes the filter at a time.
func (f *filterFlags) read(now time.Time) (wire.Filter, error) {
	filter := f.filter
	filter.Statuses = f.defaultStatus
	if len(f.statuses) > 0 {
		filter.Statuses = nil
		for _, text := range f.statuses {
			if text == "any" {
				filter.Statuses = nil
				break
			}
			status, err := wire.ParseStatus(text)
			if err != nil {
				return filter, usagef("--status: %v", err)
			}
			filter.Statuses = append(filter.Statuses, status)
		}
	}
	for _, flag := range []struct {
		name, text string
		read       func(string) (time.Time, error)
		into       *time.Time
	}{
		{"from", f.from, duration.Time, &filter.From},
		{"to", f.to, duration.Time, &filter.To},
		{"newer-than", f.newerThan, ago(now), &filter.From},
		{"older-than", f.olderThan, ago(now), &filter.To},
	} {
		if flag.text == "" {
			continue
		}
		if !flag.into.IsZero() {
			return filter, usagef("--%s: another flag already bounds this end of the time range", flag.name)
		}
		at, err := flag.read(flag.text)
		if err != nil {
			return filter, usagef("--%s: %v", flag.name, err)
		}
		*flag.into = at
	}
	for _, text := range f.fields {
		field, err := wire.ParsePayloadField(text)
		if err != nil {
			return filter, usagef("--field: %v", err)
		}
		filter.PayloadFields = append(filter.PayloadFields, field)
	}
	return filter, filter.Validate()
}

func ago(now time.Time) func(string) (time.Time, error) {
	return func(text string) (time.Time, error) {
		d, err := parseAge(text)
		return now.Add(-d), err
	}
}

// age is the value of a flag: a duration, which may be in days.
type age time.Duration

// Set parses the value.
func (d *age) Set(text string) error {
	span, err := parseAge(text)
	*d = age(span)
	return err
}

// String is the default in the help.
func (d *age) String() string {
	switch span := time.Duration(*d); {
	case span == 0:
		return ""
	case span%duration.Day == 0:
		return fmt.Sprintf("%dd", span/duration.Day)
	default:
		return span.String()
	}
}

// Type is the name of its values in the help.
func (d *age) Type() string { return "duration" }

func (d *age) before(now time.Time) time.Time { return now.Add(-time.Duration(*d)) }

// within parses a flag's number between bounds, which NaN is not.
func within(value *float64, least, most float64, want string) func(string) error {
	return func(text string) (err error) {
		if *value, err = strconv.ParseFloat(text, 64); err == nil && !(*value >= least && *value <= most) {
			err = errors.New(want)
		}
		return err
	}
}

func perSecond(v *float64) func(string) error {
	return within(v, 0, math.MaxFloat64, "must be a number, and not negative; 0 sets no limit")
}

func share(v *float64) func(string) error {
	return within(v, math.SmallestNonzeroFloat64, 1, "must be above 0 and at most 1; 0.0001 stops at nearly any failure")
}

// parseAge parses a duration that is not negative.
func parseAge(text string) (time.Duration, error) {
	d, err := duration.Parse(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a time span such as 90m, 24h or 30d", text)
	}
	return d, nil
}

// parseIDs parses the ids of entries, with ranges as 3-7.
func parseIDs(args []string) ([]int64, error) {
	var ids []int64
	for _, arg := range args {
		for text := range strings.SplitSeq(arg, ",") {
			first, last, ranged := strings.Cut(text, "-")
			from, err := driver.ParseID(first)
			if err != nil {
				return nil, usagef("%q is not the id of an entry", text)
			}
			to := from
			if ranged {
				if to, err = driver.ParseID(last); err != nil || to < from || to-from >= 100_000 {
					return nil, usagef("%q is not a range of ids such as 3-7", text)
				}
			}
			for id := from; id <= to; id++ {
				ids = append(ids, id)
			}
		}
	}
	return ids, nil
}

// addLimit adds --limit to a command that lists; 0 is the server's default.
func addLimit(cmd *cobra.Command, n *int, fallback int) {
	cmd.Flags().IntVar(n, "limit", fallback, fmt.Sprintf("at most this many, up to %d", driver.MaxPage))
}

// Completions query the store briefly, and stay empty when it does not respond: a shell waits for them.
const completionTimeout = 2 * time.Second

// completes offers a value for each item that is found, in this order with cobra.ShellCompDirectiveKeepOrder.
func completes[T any](a *app, order cobra.ShellCompDirective, find func(context.Context, *api) []T,
	value func(*T) string,
) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		var values []string
		if manager, err := a.manager(ctx); err == nil {
			for _, found := range find(ctx, manager) { // none after an error
				values = append(values, value(&found))
			}
		}
		return values, cobra.ShellCompDirectiveNoFileComp | order
	}
}

func (a *app) completeTopics() cobra.CompletionFunc {
	return completes(a, 0, func(ctx context.Context, m *api) []wire.NamedCounts {
		stats, _ := m.GetStats(ctx, wire.StatsQuery{})
		return cmp.Or(stats, &wire.Stats{}).ByTopic
	}, func(t *wire.NamedCounts) string { return printable(t.Name, false) })
}

func (a *app) completeGroups() cobra.CompletionFunc {
	return completes(a, 0, func(ctx context.Context, m *api) []wire.Group {
		list, _ := m.ListGroups(ctx, wire.GroupQuery{Limit: 50})
		return cmp.Or(list, &wire.GroupList{}).Groups
	}, func(g *wire.Group) string { return cobra.CompletionWithDesc(g.Fingerprint, oneLine(g.Cause, 60)) })
}

// completeIDs offers the newest entries in the states that the command takes.
func (a *app) completeIDs(statuses ...dlq.Status) cobra.CompletionFunc {
	return completes(a, cobra.ShellCompDirectiveKeepOrder, func(ctx context.Context, m *api) []wire.Entry {
		list, _ := m.ListEntries(ctx, wire.Filter{Statuses: statuses}, wire.Page{})
		return cmp.Or(list, &wire.EntryList{}).Entries
	}, func(e *wire.Entry) string {
		return cobra.CompletionWithDesc(driver.FormatID(e.ID), oneLine(e.Topic+": "+e.ErrorMessage, 60))
	})
}
