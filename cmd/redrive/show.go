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
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/redrive-go/redrive/dlq/driver"
)

// shown is an entry with its history in the output for programs.
type shown struct {
	entryView
	History []auditView `json:"history"`
}

type auditView struct {
	At     time.Time         `json:"at"`
	Actor  string            `json:"actor"`
	Action string            `json:"action"`
	From   string            `json:"from,omitempty"`
	To     string            `json:"to,omitempty"`
	Note   string            `json:"note,omitempty"`
	Run    string            `json:"run,omitempty"`
	Detail map[string]string `json:"detail,omitempty"`
}

func (a *app) showCommand() *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show a dead letter: error, headers, payload and history", Args: cobra.ExactArgs(1),
		Example: `  redrive dlq show 42
  redrive dlq show 42 --raw > payload.bin`,
		ValidArgsFunction: a.completeIDs(),
		RunE: a.managed(func(ctx context.Context, m operator, args []string) error {
			id, err := driver.ParseID(args[0])
			if err != nil {
				return usagef("%v", err)
			}
			e, err := m.Get(ctx, id)
			if err != nil {
				return err
			}
			if raw {
				_, err := a.out.Write(e.Body.Payload)
				return err
			}
			history, err := m.Audit(ctx, id)
			if err != nil {
				return err
			}
			v := shown{entryView: viewOf(e), History: []auditView{}}
			for _, r := range history {
				v.History = append(v.History, auditView{
					At: r.At, Actor: r.Actor, Action: string(r.Action), From: string(r.From), To: string(r.To), Note: r.Note,
					Run:    r.Run,
					Detail: r.Detail,
				})
			}
			return a.printOne(v, func(w io.Writer) error { return v.write(w, e.Body.Payload) })
		}),
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "only the payload, byte for byte")
	return cmd
}

// write prints it for people.
func (v *shown) write(w io.Writer, payload []byte) error {
	var out strings.Builder
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&out, "%-13s %s\n", name, oneLine(value, 200))
		}
	}
	line("entry", driver.FormatID(v.ID)+"  (version "+strconv.FormatInt(v.Version, 10)+")")
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
	line("record", strings.TrimSpace(v.SourceTable+" "+v.SourceID))
	line("correlation", v.CorrelationID)
	line("trace", v.TraceID)
	line("reason", v.Reason)
	line("error", v.ErrorMessage)
	line("class", v.ErrorClass)
	line("code", v.ErrorCode)
	line("rule", v.Rule)
	line("group", v.Fingerprint)
	line("attempts", strconv.Itoa(v.Attempts))
	line("redrives", strconv.Itoa(v.RetryCount)+" of "+strconv.Itoa(v.MaxRetries))
	line("died", stampOf(v.DiedAt))
	if v.SeenCount > 1 {
		line("reported", strconv.Itoa(v.SeenCount)+" times")
	}
	out.WriteString("\nheaders\n")
	for _, key := range slices.Sorted(maps.Keys(v.Headers)) {
		fmt.Fprintf(&out, "  %s: %s\n", oneLine(key, 100), oneLine(v.Headers[key], 200))
	}
	fmt.Fprintf(&out, "\npayload (%d bytes)\n", len(payload))
	out.WriteString(indent(payloadText(payload)))
	if v.StackTrace != "" {
		out.WriteString("\ntrace\n" + indent(printable(v.StackTrace, true)))
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

func (v *shown) status() string {
	switch {
	case v.ResolvedBy != "":
		return v.Status + " by " + v.ResolvedBy + " at " + stampOf(v.ResolvedAt)
	case !v.LeaseUntil.IsZero():
		return v.Status + ", its outcome is awaited until " + stampOf(v.LeaseUntil)
	default:
		return v.Status
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
