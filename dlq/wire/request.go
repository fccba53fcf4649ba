package wire

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/internal/text"
)

// ETag is that of a version of an entry or a run.
func ETag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// Note is the reason for a change.
type Note struct {
	Note string `json:"note,omitempty" maxLength:"1000" doc:"Why, for the audit log."`
}

// BulkRequest is one change of everything that a filter selects.
type BulkRequest struct {
	Action string `json:"action" enum:"resolve,discard,restore,park"`
	Filter Filter `json:"filter" doc:"Which entries. Statuses default to those that allow the action."`
	Note
}

// BulkResult is the result of a bulk change.
type BulkResult struct {
	Changed   int64      `json:"changed"`
	Refused   int64      `json:"refused" doc:"Entries that another caller had moved to another state."`
	Conflicts []Conflict `json:"conflicts" nullable:"false" doc:"The first refusals, at most 100."`
}

// Edit changes the message of an entry.
type Edit struct {
	Payload       *string           `json:"payload,omitempty" bytes:"any" doc:"The new payload, as text."`
	PayloadBase64 []byte            `json:"payload_base64,omitempty" doc:"The new payload, as bytes."`
	JQ            string            `json:"jq,omitempty" maxLength:"10000" doc:"A jq expression whose result is the new payload."`
	SetHeaders    map[string]string `json:"set_headers,omitempty" bytes:"any"`
	RemoveHeaders []string          `json:"remove_headers,omitempty" bytes:"any" nullable:"false"`
}

// EditRequest is an edit to make.
type EditRequest struct {
	Edit
	Note
	Redrive bool `json:"redrive,omitempty" doc:"Redrive it at once. If that fails, the edit remains."`
}

// Edited is the result of an edit.
type Edited struct {
	Entry Entry `json:"entry"`
	Diff  Diff  `json:"diff"`
}

// PurgeScope is what a purge removes.
type PurgeScope struct {
	Statuses     []Status  `json:"statuses,omitempty" nullable:"false" enum:"RESOLVED,DISCARDED" doc:"Defaults to RESOLVED."`
	ClosedBefore time.Time `json:"closed_before" doc:"Entries that were closed before it."`
}

// PurgeRequest asks to remove old closed entries.
type PurgeRequest struct {
	PurgeScope
	SkipArchive bool `json:"skip_archive,omitempty" doc:"Remove without a copy to the archive."`
	Note
}

// Purged is how many entries were removed.
type Purged struct {
	Purged int `json:"purged"`
}

// ArchiveRequest names entries to restore from the archive.
type ArchiveRequest struct {
	IDs []int64 `json:"ids" nullable:"false" minItems:"1" maxItems:"1000"`
	Note
}

// ArchiveResult names the restored entries.
type ArchiveResult struct {
	Restored []int64 `json:"restored" nullable:"false" doc:"Without entries that are not in the archive, or that died again since."`
}

// Imported is the result of an import.
type Imported struct {
	Stored int64 `json:"stored" doc:"New entries, with new ids."`
	Seen   int64 `json:"seen" doc:"Entries that existed already, and were not changed."`
}

// RunRequest starts a run.
type RunRequest struct {
	RunSpec
	Note
}

// RunPreviewRequest previews a run.
type RunPreviewRequest struct {
	RunSpec
	Sample int `json:"sample,omitempty" minimum:"0" maximum:"100" doc:"How many entries to show. Defaults to 10."`
}

// RunAdjustment changes a run in progress; absent fields change nothing.
type RunAdjustment struct {
	Rate   *float64       `json:"rate,omitempty" minimum:"0"`
	MaxOut *int           `json:"max_out,omitempty"`
	Stop   *StopCondition `json:"stop,omitempty"`
	Note
}

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
