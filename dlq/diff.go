package dlq

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Diff is what changed between two bodies, for a person to look at.
type Diff struct {
	// Headers are those that are not the same, by name.
	Headers []HeaderDiff
	// Lines are the payload's lines, those that changed with a few around them. JSON is compared in an indented form. Nil when the
	// payloads are the same, or one is not text.
	Lines []DiffLine
	// PayloadChanged says that the payloads are not the same bytes. Binary says that one of them is not text, and Before and After
	// are their sizes in bytes.
	PayloadChanged, Binary bool
	Before, After          int
}

// HeaderDiff is a header that was added, removed or changed.
type HeaderDiff struct {
	Name string
	// Before and After are its values; Added has no Before, Removed no After.
	Before, After  string
	Added, Removed bool
}

// DiffLine is a line of a payload. Op is '-' for one that is gone, '+' for a new one, ' ' for one that stays, and '@' for a gap.
type DiffLine struct {
	Op   byte
	Text string
}

// DiffBodies compares two bodies.
func DiffBodies(before, after *Body) Diff {
	d := Diff{Before: len(before.Payload), After: len(after.Payload)}
	for name, value := range before.Headers {
		now, there := after.Headers[name]
		if !there || now != value {
			d.Headers = append(d.Headers, HeaderDiff{Name: name, Before: value, After: now, Removed: !there})
		}
	}
	for name, value := range after.Headers {
		if _, there := before.Headers[name]; !there {
			d.Headers = append(d.Headers, HeaderDiff{Name: name, After: value, Added: true})
		}
	}
	slices.SortFunc(d.Headers, func(a, b HeaderDiff) int { return strings.Compare(a.Name, b.Name) })
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

// detail is the diff as the audit log keeps it: bounded.
func (d Diff) detail() map[string]string {
	detail := map[string]string{"diff": clean(d.String(), maxErrorText)}
	if d.PayloadChanged {
		detail["payload_bytes"] = strconv.Itoa(d.Before) + " -> " + strconv.Itoa(d.After)
	}
	return detail
}

// diffable cuts a payload into lines. JSON is indented, which touches no number and keeps the order of the keys.
func diffable(payload []byte) []string {
	var indented bytes.Buffer
	if json.Indent(&indented, payload, "", "  ") == nil {
		payload = indented.Bytes()
	}
	return strings.Split(string(payload), "\n")
}

const (
	diffContext  = 3
	maxDiffTable = 1 << 20 // cells of the comparison table: about a thousand changed lines on either side
)

// diffLines compares the lines between the common beginning and the common end. Where these are too many for the table, all of them
// changed.
func diffLines(before, after []string) []DiffLine {
	head := 0
	for head < len(before) && head < len(after) && before[head] == after[head] {
		head++
	}
	tail := 0
	for tail < len(before)-head && tail < len(after)-head && before[len(before)-1-tail] == after[len(after)-1-tail] {
		tail++
	}
	a, b := before[head:len(before)-tail], after[head:len(after)-tail]
	var lines []DiffLine
	for _, line := range before[:head] {
		lines = append(lines, DiffLine{' ', line})
	}
	if len(a)*len(b) > maxDiffTable {
		for _, line := range a {
			lines = append(lines, DiffLine{'-', line})
		}
		for _, line := range b {
			lines = append(lines, DiffLine{'+', line})
		}
	} else {
		lines = append(lines, longestCommon(a, b)...)
	}
	for _, line := range before[len(before)-tail:] {
		lines = append(lines, DiffLine{' ', line})
	}
	return aroundChanges(lines)
}

// longestCommon is the shortest list of changes between few lines, by the table of longest common subsequences.
func longestCommon(a, b []string) []DiffLine {
	table := make([][]int, len(a)+1)
	for i := range table {
		table[i] = make([]int, len(b)+1)
	}
	for i := range slices.Backward(a) {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				table[i][j] = table[i+1][j+1] + 1
			} else {
				table[i][j] = max(table[i+1][j], table[i][j+1])
			}
		}
	}
	var lines []DiffLine
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			lines = append(lines, DiffLine{' ', a[i]})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && table[i+1][j] >= table[i][j+1]:
			lines = append(lines, DiffLine{'-', a[i]})
			i++
		default:
			lines = append(lines, DiffLine{'+', b[j]})
			j++
		}
	}
	return lines
}

// aroundChanges leaves out what is far from any change.
func aroundChanges(lines []DiffLine) []DiffLine {
	keep := make([]bool, len(lines))
	for i, line := range lines {
		if line.Op == ' ' {
			continue
		}
		for k := max(0, i-diffContext); k <= min(len(lines)-1, i+diffContext); k++ {
			keep[k] = true
		}
	}
	var out []DiffLine
	for i, line := range lines {
		switch {
		case keep[i]:
			out = append(out, line)
		case i > 0 && keep[i-1]:
			out = append(out, DiffLine{'@', "…"})
		}
	}
	return out
}
