package wire

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/redrive-go/redrive/dlq/internal/text"
)

// Diff is what changed between two bodies.
type Diff struct {
	Headers        []HeaderDiff `json:"headers" nullable:"false"`
	Lines          []DiffLine   `json:"lines" nullable:"false" doc:"The changed lines of the payload with their context; JSON is indented first."`
	PayloadChanged bool         `json:"payload_changed"`
	Binary         bool         `json:"binary" doc:"One of the payloads is not text."`
	Before         int          `json:"before" doc:"Bytes before."`
	After          int          `json:"after" doc:"Bytes after."`
}

// HeaderDiff is a changed header.
type HeaderDiff struct {
	Name    Text `json:"name"`
	Before  Text `json:"before,omitempty"`
	After   Text `json:"after,omitempty"`
	Added   bool `json:"added,omitempty"`
	Removed bool `json:"removed,omitempty"`
}

// DiffLine is a line of a payload.
type DiffLine struct {
	Op   string `json:"op" enum:"-,+, ,@" doc:"- is removed, + is added, a space is unchanged, @ is a gap."`
	Text string `json:"text"`
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
		fmt.Fprintf(&b, "%s%s\n", line.Op, line.Text)
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
