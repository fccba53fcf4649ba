package payload

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/internal/text"
)

// Diff is the difference between two bodies, for people.
type Diff struct {
	// Headers are the different ones, by name.
	Headers []Header
	// Lines are the payload's changed lines with a few around them. JSON is compared in an indented form. Nil when the
	// payloads are equal, or one is not text.
	Lines []Line
	// PayloadChanged means that the payloads have different bytes. Binary means that one of them is not text; then Before
	// and After are their sizes in bytes.
	PayloadChanged, Binary bool
	Before, After          int
}

// Header is a header that was added, removed or changed.
type Header struct {
	Name string
	// Before and After are its values; Added has no Before, Removed no After.
	Before, After  string
	Added, Removed bool
}

// Line is a line of a payload. Op is '-' for a removed one, '+' for a new one, ' ' for an unchanged one, and '@' for a
// gap.
type Line struct {
	Op   byte
	Text string
}

// Compare compares two bodies.
func Compare(before, after *driver.Body) Diff {
	d := Diff{Before: len(before.Payload), After: len(after.Payload)}
	for name, value := range before.Headers {
		now, there := after.Headers[name]
		if !there || now != value {
			d.Headers = append(d.Headers, Header{Name: name, Before: value, After: now, Removed: !there})
		}
	}
	for name, value := range after.Headers {
		if _, there := before.Headers[name]; !there {
			d.Headers = append(d.Headers, Header{Name: name, After: value, Added: true})
		}
	}
	slices.SortFunc(d.Headers, func(a, b Header) int { return strings.Compare(a.Name, b.Name) })
	if bytes.Equal(before.Payload, after.Payload) {
		return d
	}
	d.PayloadChanged = true
	if !utf8.Valid(before.Payload) || !utf8.Valid(after.Payload) {
		d.Binary = true
		return d
	}
	d.Lines = diffLines(diffable(before.Payload), diffable(after.Payload))
	return d
}

// Empty reports whether nothing changed.
func (d Diff) Empty() bool { return len(d.Headers) == 0 && !d.PayloadChanged }

// String is the diff as text: headers first, then lines with -, + or a space before them.
func (d Diff) String() string {
	var b strings.Builder
	for _, h := range d.Headers {
		if !h.Added {
			fmt.Fprintf(&b, "-%s: %s\n", h.Name, h.Before)
		}
		if !h.Removed {
			fmt.Fprintf(&b, "+%s: %s\n", h.Name, h.After)
		}
	}
	if d.Binary {
		fmt.Fprintf(&b, "binary payload: %d bytes before, %d after\n", d.Before, d.After)
	}
	for _, line := range d.Lines {
		fmt.Fprintf(&b, "%c%s\n", line.Op, line.Text)
	}
	return b.String()
}

// Detail is the diff for the audit log, truncated.
func (d Diff) Detail() map[string]string {
	detail := map[string]string{"diff": text.Clean(d.String(), text.MaxError)}
	if d.PayloadChanged {
		detail["payload_bytes"] = strconv.Itoa(d.Before) + " -> " + strconv.Itoa(d.After)
	}
	return detail
}

// diffable is a payload as lines. JSON is indented, which changes no number and keeps the order of the keys.
func diffable(payload []byte) string {
	var indented bytes.Buffer
	if json.Indent(&indented, payload, "", "  ") == nil {
		payload = indented.Bytes()
	}
	return string(payload) + "\n" // so that each line ends in a line feed
}

const diffContext = 3 // lines around a change

func diffLines(before, after string) []Line {
	unified, err := udiff.ToUnifiedDiff("", "", before, udiff.Lines(before, after), diffContext)
	if err != nil {
		return nil // cannot happen: the edits were made from this text
	}
	ops := map[udiff.OpKind]byte{udiff.Delete: '-', udiff.Insert: '+', udiff.Equal: ' '}
	gap := Line{'@', "…"}
	var lines []Line
	last := 0
	for _, hunk := range unified.Hunks {
		if len(lines) > 0 {
			lines = append(lines, gap)
		}
		last = hunk.FromLine - 1
		for _, line := range hunk.Lines {
			if line.Kind != udiff.Insert {
				last++
			}
			lines = append(lines, Line{ops[line.Kind], strings.TrimSuffix(line.Content, "\n")})
		}
	}
	if len(lines) > 0 && last < strings.Count(before, "\n") {
		lines = append(lines, gap)
	}
	return lines
}
