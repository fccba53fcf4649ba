package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/payload"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// shown is an entry and its history.
type shown struct {
	wire.EntryDetail

	History []wire.AuditRecord `json:"history"`
}

func (a *app) showCommand() *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show a dead letter: error, headers, payload and history", Args: cobra.ExactArgs(1),
		Example: `  redrive dlq show 42
  redrive dlq show 42 --raw > payload.bin`,
		ValidArgsFunction: a.completeIDs(),
		RunE: a.managed(func(ctx context.Context, m *api, args []string) error {
			id, err := driver.ParseID(args[0])
			if err != nil {
				return usagef("%v", err)
			}
			e, err := m.GetEntry(ctx, id, 0)
			if err != nil {
				return err
			}
			if raw {
				_, err := a.out.Write(e.Body.Bytes())
				return err
			}
			history, err := m.GetEntryAudit(ctx, id)
			if err != nil {
				return err
			}
			v := shown{*e, history.Records}
			return a.printOne(v, v.text)
		}),
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "only the payload, byte for byte")
	return cmd
}

// text is what people see.
func (v *shown) text() string {
	var out strings.Builder
	line := func(name string, value wire.Text) {
		if value != "" {
			fmt.Fprintf(&out, "%-13s %s\n", name, oneLine(value, 200))
		}
	}
	line("entry", wire.Text(fmt.Sprintf("%d  (version %d)", v.ID, v.Version)))
	line("status", v.status())
	line("message", v.EventID)
	line("event", v.EventType)
	line("topic", v.Topic)
	line("consumer", v.Consumer)
	line("position", v.Position)
	line("exchange", v.Exchange)
	line("routing key", v.RoutingKey)
	line("redrive to", v.RedriveTo)
	line("broker", v.Broker)
	line("handler", v.Handler)
	line("record", wire.Text(strings.TrimSpace(string(v.SourceTable+" "+v.SourceID))))
	line("correlation", v.CorrelationID)
	line("trace", wire.Text(envelope.TraceID(v.Body.Headers)))
	line("reason", wire.Text(v.Reason))
	line("error", v.ErrorMessage)
	line("class", v.ErrorClass)
	line("code", v.ErrorCode)
	line("rule", v.Rule)
	line("group", wire.Text(v.Fingerprint))
	line("attempts", wire.Text(strconv.Itoa(v.Attempts)))
	line("redrives", wire.Text(fmt.Sprintf("%d of %d", v.RedriveCount, v.RedriveBudget)))
	line("died", wire.Text(stampOf(v.DiedAt)))
	if v.SeenCount > 1 {
		line("reported", wire.Text(fmt.Sprintf("%d times", v.SeenCount)))
	}
	out.WriteString("\nheaders\n")
	for _, key := range slices.Sorted(maps.Keys(v.Body.Headers)) {
		fmt.Fprintf(&out, "  %s: %s\n", oneLine(key, 100), oneLine(v.Body.Headers[key], 200))
	}
	body := v.Body.Bytes()
	fmt.Fprintf(&out, "\npayload (%d bytes)\n", len(body))
	out.WriteString(indent(payloadText(body)))
	if trace := string(v.Body.StackTrace); trace != "" {
		out.WriteString("\ntrace\n" + indent(printable(trace, true)))
	}
	if len(v.History) > 0 {
		out.WriteString("\nhistory\n")
	}
	for _, r := range v.History {
		fmt.Fprintf(&out, "  %s  %s by %s: %s", stampOf(r.At), r.Action, oneLine(r.Actor, 60), r.To)
		if r.Note != "" {
			out.WriteString(" (" + oneLine(r.Note, 200) + ")")
		}
		out.WriteByte('\n')
	}
	return out.String()
}

func (v *shown) status() wire.Text {
	status := wire.Text(v.Status)
	switch {
	case v.ResolvedBy != "":
		return status + " by " + v.ResolvedBy + " at " + wire.Text(stampOf(v.ResolvedAt))
	case !v.LeaseUntil.IsZero():
		return status + ", its outcome is awaited until " + wire.Text(stampOf(v.LeaseUntil))
	default:
		return status
	}
}

// payloadText shows JSON indented, text as it is, and bytes as the beginning of a hex dump.
func payloadText(body []byte) string {
	const limit = 16 << 10
	cut := ""
	text, _ := payload.Indent(body)
	if len(text) > limit {
		cut = fmt.Sprintf("\n… cut; --raw shows all %d bytes", len(text))
		text = text[:limit]
		for range utf8.UTFMax {
			if r, size := utf8.DecodeLastRune(text); r == utf8.RuneError && size == 1 {
				text = text[:len(text)-1]
			}
		}
	}
	if !utf8.Valid(text) {
		return fmt.Sprintf("% x", text[:min(len(text), 256)]) + cut
	}
	return printable(string(text), true) + cut
}

func indent(text string) string {
	if text = strings.TrimRight(text, "\n"); text == "" {
		return ""
	}
	return "  " + strings.ReplaceAll(text, "\n", "\n  ") + "\n"
}

var entryColumns = []column[wire.Entry]{
	{title: "ID", right: true, gives: whole, value: func(e wire.Entry) string { return driver.FormatID(e.ID) }},
	{title: "Status", value: func(e wire.Entry) string { return string(e.Status) }},
	{title: "Topic", value: func(e wire.Entry) string { return oneLine(e.Topic, 32) }},
	{title: "Consumer", wide: true, value: func(e wire.Entry) string { return oneLine(e.Consumer, 32) }},
	{title: "Handler", wide: true, value: func(e wire.Entry) string { return oneLine(e.Handler, 32) }},
	{title: "Reason", value: func(e wire.Entry) string { return e.Reason }},
	{title: "Error", value: func(e wire.Entry) string { return oneLine(e.ErrorMessage, 60) }},
	{title: "Class", wide: true, value: func(e wire.Entry) string { return oneLine(e.ErrorClass, 40) }},
	{title: "Group", wide: true, value: func(e wire.Entry) string { return e.Fingerprint }},
	{title: "Attempts", wide: true, right: true, value: func(e wire.Entry) string { return strconv.Itoa(e.Attempts) }},
	{title: "Redrives", right: true, gives: drops, value: func(e wire.Entry) string { return strconv.Itoa(e.RedriveCount) }},
	{title: "Died", value: func(e wire.Entry) string { return stampOf(e.DiedAt) }},
	{title: "Message", gives: drops, value: func(e wire.Entry) string { return oneLine(e.EventID, 36) }},
}

// plural is a number and what it counts.
func plural[N int | int64](n N, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return strconv.FormatInt(int64(n), 10) + " " + thing
}

func deadLetters(n int64) string { return plural(n, "dead letter") }

// stampLayout is how tables write times; a table that is fitted to a terminal makes them relative.
const stampLayout = "2006-01-02 15:04:05Z"

func stampOf(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(stampLayout)
}

// oneLine makes text fit for a cell: no control characters, which would control the terminal, and at most this many
// runes.
func oneLine[T ~string](text T, limit int) string {
	return shorten(printable(string(text), false), limit)
}

// printable replaces what a terminal would execute: anyone can write messages.
func printable(text string, lines bool) string {
	return strings.Map(func(r rune) rune {
		switch {
		case lines && (r == '\n' || r == '\t'):
			return r
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r < ' ':
			return utf8.RuneError
		}
		return r
	}, steering.ReplaceAllString(text, string(utf8.RuneError)))
}

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
