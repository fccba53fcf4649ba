package payload

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

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
	d.Lines = diffLines(string(was)+"\n", string(now)+"\n") // so that each line ends in a line feed
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

func diffLines(before, after string) []wire.DiffLine {
	unified, err := udiff.ToUnifiedDiff("", "", before, udiff.Lines(before, after), diffContext)
	if err != nil {
		return []wire.DiffLine{} // cannot happen: the edits were made from this text
	}
	ops := map[udiff.OpKind]string{udiff.Delete: "-", udiff.Insert: "+", udiff.Equal: " "}
	gap := wire.DiffLine{Op: "@", Text: "…"}
	lines := []wire.DiffLine{}
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
			lines = append(lines, wire.DiffLine{Op: ops[line.Kind], Text: strings.TrimSuffix(line.Content, "\n")})
		}
	}
	if len(lines) > 0 && last < strings.Count(before, "\n") {
		lines = append(lines, gap)
	}
	return lines
}
