package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/itchyny/gojq"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"golang.org/x/term"
)

var formats = []string{"table", "wide", "json", "jsonl", "csv", "yaml"}

type column[T any] struct {
	title string
	value func(T) string
	wide  bool // only in wide tables and CSV
	right bool
	gives give
}

// printList prints items: as a table for people, or as JSON, or a format derived from it, for programs.
func printList[T any](a *app, items []T, columns []column[T]) error {
	if items == nil {
		items = []T{}
	}
	switch format := a.format(); format {
	case "table", "wide":
		if len(items) == 0 {
			return nil // a header alone says nothing, and a script that counts lines would count it
		}
		_, err := fmt.Fprintln(a.out, a.render(newTable(items, columns, format == "wide", a.fit(format))))
		return err
	case "csv":
		w := newTable(items, columns, true, 0)
		w.Style().CSV.FieldProtection = true // anyone can write messages: no spreadsheet treats their text as a formula
		if a.headed {
			w.ResetHeaders()
		}
		a.headed = true
		_, err := fmt.Fprintln(a.out, w.RenderCSV())
		return err
	case "jsonl":
		for _, item := range items {
			if err := a.printJSON(item, false); err != nil {
				return err
			}
		}
		return nil
	}
	return a.printValue(items)
}

// printPage prints items, and hints that there are none, or how to get those that are left, if any are.
func printPage[T any](a *app, items []T, columns []column[T], none, more string) error {
	if err := printList(a, items, columns); err != nil {
		return err
	}
	switch {
	case len(items) == 0:
		a.hint("%s", none)
	case more != "":
		a.hint("there are more: %s", more)
	}
	return nil
}

// writeTable writes a table with an empty line before it, unless it is empty.
func writeTable[T any](a *app, out *strings.Builder, items []T, columns []column[T]) {
	if len(items) > 0 {
		fmt.Fprintf(out, "\n%s\n", a.render(newTable(items, columns, false, width(a.out))))
	}
}

// fit is how many columns a table may have: those of the terminal; 0 is any number, for -o wide and for programs.
func (a *app) fit(format string) int {
	if format == "wide" {
		return 0
	}
	return width(a.out)
}

// newTable makes a table that fits into so many columns; 0 is any number.
func newTable[T any](items []T, columns []column[T], wide bool, fit int) table.Writer {
	w := table.NewWriter()
	columns = slices.DeleteFunc(slices.Clone(columns), func(c column[T]) bool { return c.wide && !wide })
	rows := make([]table.Row, 1+len(items))
	for _, c := range columns {
		rows[0] = append(rows[0], c.title)
		for i, item := range items {
			rows[1+i] = append(rows[1+i], printable(c.value(item), false))
		}
	}
	if fit > 0 {
		columns = fitted(rows, columns, fit, time.Now())
	}
	var configs []table.ColumnConfig
	for i, c := range columns {
		if c.right {
			configs = append(configs, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
		}
	}
	w.SetColumnConfigs(configs)
	w.AppendHeader(rows[0])
	w.AppendRows(rows[1:])
	return w
}

// render draws a table without lines, which copies and greps well.
func (a *app) render(w table.Writer) string {
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatUpper
	w.SetStyle(style)
	lines := strings.Split(w.Render(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	if a.colourful(a.out) { // not the style's: its colours would hide the blanks behind the last title
		lines[0] = text.Bold.Sprint(lines[0])
	}
	return strings.Join(lines, "\n")
}

// printOne prints one thing: for people as human writes it.
func (a *app) printOne(value any, human func() string) error {
	if err := a.checkOne(); err != nil {
		return err
	}
	switch a.format() {
	case "table", "wide":
		_, err := io.WriteString(a.out, human())
		return err
	case "jsonl":
		return a.printJSON(value, false)
	default:
		return a.printValue(value)
	}
}

// printValue prints JSON, YAML, or the result of --jq.
func (a *app) printValue(value any) error {
	if a.flags.jq != "" {
		return a.printJQ(value)
	}
	if a.flags.output != "yaml" {
		return a.printJSON(value, true)
	}
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	var ordered any
	if err := yaml.UnmarshalWithOptions(data, &ordered, yaml.UseOrderedMap()); err != nil {
		return err
	}
	text, err := yaml.MarshalWithOptions(ordered, yaml.CustomMarshaler(yamlText))
	if err != nil {
		return err
	}
	_, err = a.out.Write(text)
	return err
}

var plainText = regexp.MustCompile(`^\pL[\pL\pN\pP\pS ]*$`)

// yamlText quotes what other readers would refuse or not read as text: goccy/go-yaml 1.19 writes "? x", "1:30" and
// control characters as they are.
func yamlText(text string) ([]byte, error) {
	if plainText.MatchString(text) {
		return yaml.Marshal(text)
	}
	return []byte(strconv.Quote(text)), nil
}

func (a *app) printJSON(value any, indent bool) error {
	var buf bytes.Buffer
	encoder := json.NewEncoder(&buf)
	encoder.SetEscapeHTML(false)
	if indent {
		encoder.SetIndent("", "  ")
	}
	if err := encoder.Encode(value); err != nil {
		return err
	}
	_, err := io.WriteString(a.out, escaped(buf.String()))
	return err
}

var steering = regexp.MustCompile("[\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

// escaped is JSON without what would control a terminal: JSON itself only escapes the characters below the space.
func escaped(text string) string {
	return steering.ReplaceAllStringFunc(text, func(c string) string { return fmt.Sprintf(`\u%04x`, []rune(c)[0]) })
}

// printJQ prints each value that the expression gives on a separate line, strings without quotes.
func (a *app) printJQ(value any) error {
	query, err := gojq.Parse(a.flags.jq)
	if err != nil {
		return usagef("--jq: %v", err)
	}
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // ids beyond 2^53 stay themselves
	var input any
	if err := decoder.Decode(&input); err != nil {
		return err
	}
	for results := query.Run(input); ; {
		result, ok := results.Next()
		if !ok {
			return nil
		}
		if err, failed := result.(error); failed {
			if halt, ok := errors.AsType[*gojq.HaltError](err); ok && halt.Value() == nil {
				return nil
			}
			return usagef("--jq: %v", err)
		}
		if text, ok := result.(string); ok {
			if isTerminal(a.out) {
				text = printable(text, true)
			}
			if _, err := fmt.Fprintln(a.out, text); err != nil {
				return err
			}
			continue
		}
		line, err := gojq.Marshal(result)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(a.out, escaped(string(line))); err != nil {
			return err
		}
	}
}

// textOutput reports whether what is printed is text, not data.
func (a *app) textOutput() bool {
	return a.flags.jq == "" && (a.flags.output == "table" || a.flags.output == "wide")
}

// checkOutput finds what is wrong with -o and --jq, before a command changes anything.
func (a *app) checkOutput(cmd *cobra.Command, args []string) error {
	switch {
	case !slices.Contains(formats, a.flags.output):
		return usagef("-o %s: one of %s", a.flags.output, strings.Join(formats, ", "))
	case a.format() != "table" && !printsData(cmd, args):
		return usagef("%s prints no data here: leave -o and --jq out", cmd.CommandPath())
	case a.flags.jq == "":
		return nil
	case a.flags.output != "table" && a.flags.output != "json":
		return usagef("--jq works on JSON: leave -o %s out", a.flags.output)
	}
	if _, err := gojq.Parse(a.flags.jq); err != nil {
		return usagef("--jq: %v", err)
	}
	return nil
}

// printsData declares the commands that print data, in the formats of -o and for --jq: some only with certain flags.
func printsData(cmd *cobra.Command, args []string) bool {
	on := func(flag string) bool { set, _ := cmd.Flags().GetBool(flag); return set } // false without the flag
	switch cmd.Name() {
	case "doctor", "edit", "explain", "groups", "list", "mutes", "report", "stats", "tail":
		return true
	case "show":
		return !on("raw")
	case "redrive":
		return len(args) == 0 || on("dry-run")
	case "discard", "park", "resolve", "restore":
		return on("dry-run")
	}
	return cmd.HasParent() && cmd.Parent().Name() == "runs"
}

// checkOne is checkOutput for a command that prints one thing.
func (a *app) checkOne() error {
	if a.flags.output == "csv" {
		return usagef("-o csv is for lists: use json or yaml")
	}
	return nil
}

// format is the output format; --jq wants JSON.
func (a *app) format() string {
	if a.flags.jq != "" {
		return "json"
	}
	return a.flags.output
}

// hint tells people something on stderr.
func (a *app) hint(format string, args ...any) {
	if !a.flags.quiet {
		_, _ = fmt.Fprintln(a.err, printable(fmt.Sprintf(format, args...), true))
	}
}

const (
	// narrowest is the width below which no column of a table shrinks.
	narrowest = 8
	padding   = 2
)

// width is the width of the terminal behind w; 0 for programs, which get everything.
func width(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		return columns
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns <= 0 {
		return 80
	}
	return columns
}

// give is how a column shrinks when a table is too wide.
type give int

const (
	cuts  give = iota // its long texts end with an ellipsis
	drops             // it is left out, the last such column first, before anything is cut
	whole             // ids that people copy: never
	folds             // its long texts continue below
)

// fitted fits rows into a terminal of so many columns and returns the table's columns that are left: times become
// relative, the least important columns are omitted, and long texts are truncated or folded. -o wide shows everything.
func fitted[T any](rows []table.Row, columns []column[T], fit int, now time.Time) []column[T] {
	widths, total := make([]int, len(columns)), -padding
	for _, row := range rows {
		for i, cell := range row {
			shown := relative(fmt.Sprint(cell), now)
			row[i], widths[i] = shown, max(widths[i], utf8.RuneCountInString(shown))
		}
	}
	for _, w := range widths {
		total += padding + w
	}
	for i := len(columns) - 1; i >= 0 && total > fit; i-- {
		if columns[i].gives == drops {
			total -= padding + widths[i]
			columns, widths = slices.Delete(columns, i, i+1), slices.Delete(widths, i, i+1)
			for r := range rows {
				rows[r] = slices.Delete(rows[r], i, i+1)
			}
		}
	}
	for ; total > fit; total-- {
		widest := -1
		for i, w := range widths {
			if columns[i].gives != whole && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 || widths[widest] <= narrowest {
			break
		}
		widths[widest]--
	}
	for _, row := range rows {
		for i, cell := range row {
			shrink := shorten
			if columns[i].gives == folds {
				shrink = text.WrapSoft
			}
			row[i] = shrink(cell.(string), widths[i])
		}
	}
	return columns
}

func shorten(text string, limit int) string {
	if utf8.RuneCountInString(text) <= limit {
		return text
	}
	return strings.TrimRight(string([]rune(text)[:limit-1]), " ") + "…"
}

// relative is a cell of stampOf as the time since then; other cells do not change.
func relative(cell string, now time.Time) string {
	at, err := time.Parse(stampLayout, cell)
	if err != nil {
		return cell
	}
	ago := now.Sub(at)
	suffix := " ago"
	if ago < 0 {
		ago, suffix = -ago, " from now"
	}
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if ago >= 2*unit.length || ago >= unit.length && unit.name != "d" {
			return strconv.Itoa(int(ago/unit.length)) + unit.name + suffix
		}
	}
	return strconv.Itoa(int(ago/time.Second)) + "s" + suffix
}
