package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
	"github.com/redrive-go/redrive/envelope"
)

// shown is an entry with its history.
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
			return a.printOne(v, v.write)
		}),
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "only the payload, byte for byte")
	return cmd
}

// write prints it for people.
func (v *shown) write(w io.Writer) error {
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
	payload := v.Body.Bytes()
	fmt.Fprintf(&out, "\npayload (%d bytes)\n", len(payload))
	out.WriteString(indent(payloadText(payload)))
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
	_, err := io.WriteString(w, out.String())
	return err
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
func payloadText(payload []byte) string {
	const limit = 16 << 10
	cut := ""
	var indented bytes.Buffer
	if json.Indent(&indented, payload, "", "  ") == nil {
		payload = indented.Bytes()
	}
	if len(payload) > limit {
		cut = fmt.Sprintf("\n… cut; --raw shows all %d bytes", len(payload))
		payload = payload[:limit]
		for range utf8.UTFMax {
			if r, size := utf8.DecodeLastRune(payload); r == utf8.RuneError && size == 1 {
				payload = payload[:len(payload)-1]
			}
		}
	}
	if !utf8.Valid(payload) {
		return fmt.Sprintf("% x", payload[:min(len(payload), 256)]) + cut
	}
	return printable(string(payload), true) + cut
}

func indent(text string) string {
	if text = strings.TrimRight(text, "\n"); text == "" {
		return ""
	}
	return "  " + strings.ReplaceAll(text, "\n", "\n  ") + "\n"
}
