package payload

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff/lcs"

	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Diff is the difference between two bodies, for people; JSON is compared in an indented form.
type Diff = wire.Diff

// Compare compares two bodies.
func Compare(before, after *driver.Body) Diff {
	d := Diff{
		Headers: []wire.HeaderDiff{}, Lines: []wire.DiffLine{}, Before: len(before.Payload), After: len(after.Payload),
	}
	all := map[string]string{}
	maps.Copy(all, before.Headers)
	maps.Copy(all, after.Headers)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		was, had := before.Headers[name]
		if now, has := after.Headers[name]; had != has || was != now {
			d.Headers = append(d.Headers, wire.HeaderDiff{
				Name: wire.Text(name), Before: wire.Text(was), After: wire.Text(now), Added: !had, Removed: !has,
			})
		}
	}
	if bytes.Equal(before.Payload, after.Payload) {
		return d
	}
	d.PayloadChanged = true
	if !utf8.Valid(before.Payload) || !utf8.Valid(after.Payload) {
		d.Binary = true
		return d
	}
	was, _ := Indent(before.Payload)
	now, _ := Indent(after.Payload)
	d.Lines = diffLines(string(was), string(now))
	return d
}

// Indent returns JSON indented, which changes no number and keeps the order of the keys. Anything else is returned as
// it is, and so is JSON whose white space would grow out of proportion: by the square of its nesting.
func Indent(payload []byte) (shown []byte, indented bool) {
	most := 1<<20 + 8*len(payload)
	size, depth, text := len(payload), 0, false
	for i := 0; i < len(payload) && size <= most; i++ {
		switch c := payload[i]; {
		case c == '"':
			text = !text
		case c == '\\':
			i++ // only in texts
		case text:
		case c == '[' || c == '{':
			depth++
			size += 1 + 2*depth
		case c == ']' || c == '}':
			depth--
			size += 1 + 2*depth
		case c == ',':
			size += 1 + 2*depth
		}
	}
	var out bytes.Buffer
	if size > most || json.Indent(&out, payload, "", "  ") != nil {
		return payload, false
	}
	return out.Bytes(), true
}

const diffContext = 3

// diffLines compares texts by line. A megabyte may have a million lines, for which only the result is allocated.
func diffLines(before, after string) []wire.DiffLine {
	was, now := strings.Split(before, "\n"), strings.Split(after, "\n")
	edits, size := lcs.DiffLines(was, now), 0
	if len(edits) == 0 {
		return []wire.DiffLine{}
	}
	for _, e := range edits {
		size += e.End - e.Start + e.ReplEnd - e.ReplStart + 2*diffContext + 1
	}
	lines := make([]wire.DiffLine, 0, size)
	add := func(op string, texts ...string) {
		for _, text := range texts {
			lines = append(lines, wire.DiffLine{Op: op, Text: text})
		}
	}
	last := max(0, edits[0].Start-diffContext) // the lines of was before it are shown, or left out
	for _, e := range edits {
		if e.Start-last > 2*diffContext {
			add(" ", was[last:last+diffContext]...)
			add("@", "…")
			last = e.Start - diffContext
		}
		add(" ", was[last:e.Start]...)
		add("-", was[e.Start:e.End]...)
		add("+", now[e.ReplStart:e.ReplEnd]...)
		last = e.End
	}
	end := min(last+diffContext, len(was))
	add(" ", was[last:end]...)
	if end < len(was) {
		add("@", "…")
	}
	return lines
}
