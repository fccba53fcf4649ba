package wire

import (
	"errors"
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
	Sample int `json:"sample,omitempty" minimum:"0" maximum:"100" doc:"How many entries to show, fewer if they are large. Defaults to 10."`
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

// Me is the caller, and what the server allows it.
type Me struct {
	Name     string `json:"name" doc:"The name in the audit log."`
	Role     string `json:"role" enum:"viewer,operator,approver,admin"`
	ReadOnly bool   `json:"read_only" doc:"The server rejects every change."`
	Redacted bool   `json:"redacted" doc:"Some values are hidden from the caller."`

	RedriveRate float64 `json:"redrive_rate,omitempty" doc:"Messages a second of a run for which no rate is given; 0 means no limit."`
}

// Rule redrives dead letters with technical causes automatically.
type Rule struct {
	Name            string  `json:"name"`
	Reason          string  `json:"reason,omitempty"`
	ErrorClass      string  `json:"error_class,omitempty"`
	ErrorCode       string  `json:"error_code,omitempty"`
	Fingerprint     string  `json:"fingerprint,omitempty"`
	Handler         string  `json:"handler,omitempty"`
	Topic           string  `json:"topic,omitempty"`
	Cause           string  `json:"cause,omitempty"`
	AfterSeconds    float64 `json:"after_seconds" doc:"How long after its last death an entry is redriven; doubled with each redrive."`
	MaxAfterSeconds float64 `json:"max_after_seconds"`
	Redrives        int     `json:"redrives" doc:"Maximum number of redrives."`
	Rate            float64 `json:"rate" doc:"Maximum number of messages per second."`
	CloseOnPublish  bool    `json:"close_on_publish,omitempty"`
}

// RuleList are the rules that the server applies.
type RuleList struct {
	Rules []Rule `json:"rules" nullable:"false"`
}

// Retention is how long closed entries are kept, and what a purge would remove now.
type Retention struct {
	ResolvedSeconds  int64 `json:"resolved_seconds" doc:"How long RESOLVED entries are kept; 0 means forever."`
	DiscardedSeconds int64 `json:"discarded_seconds" doc:"How long DISCARDED entries are kept; 0 means forever."`
	SkipArchive      bool  `json:"skip_archive" doc:"Remove without a copy to the archive."`
	ResolvedDue      int64 `json:"resolved_due" doc:"RESOLVED entries older than that."`
	DiscardedDue     int64 `json:"discarded_due" doc:"DISCARDED entries older than that."`
}

// Health is the state of the program and of each of its components.
type Health struct {
	// Status is [StatusOK] or [StatusFailing]; failing when any component is.
	Status string `json:"status" enum:"ok,failing"`
	// Components are what the program needs, by name: store, "broker orders", "source orders/orders_dlq".
	Components map[string]Component `json:"components"`
}

// Component is the state of a component that the program needs.
type Component struct {
	Status string `json:"status" enum:"ok,failing"`
	// Error is what is wrong. It must not show a password.
	Error string `json:"error,omitempty"`
	// Collected and Held are a source's messages: stored since the start, and read but not stored yet.
	Collected int64 `json:"collected,omitempty"`
	Held      int64 `json:"held,omitempty"`
}

// The states of a program and of a component.
const (
	StatusOK      = "ok"
	StatusFailing = "failing"
)

// Add records the state of a component: failing if err is not nil. Not safe for concurrent use.
func (h *Health) Add(name string, err error, c Component) {
	if h.Components == nil {
		h.Components = map[string]Component{}
	}
	if h.Status == "" {
		h.Status = StatusOK
	}
	c.Status = StatusOK
	if err != nil {
		c.Status, c.Error, h.Status = StatusFailing, err.Error(), StatusFailing
	}
	h.Components[name] = c
}

// Problem is a response that is not a success (RFC 9457): what went wrong, and what to do about it.
type Problem struct {
	Type     string    `json:"type,omitempty"`
	Title    string    `json:"title,omitempty"`
	Status   int       `json:"status,omitempty"`
	Detail   string    `json:"detail,omitempty"`
	Instance string    `json:"instance,omitempty"`
	Errors   []Fault   `json:"errors,omitempty"`
	Conflict *Conflict `json:"conflict,omitempty"`
	Imported *Imported `json:"imported,omitempty"`
}

// Fault is one fault of a request.
type Fault struct {
	Message  string `json:"message,omitempty"`
	Location string `json:"location,omitempty"`
	Value    any    `json:"value,omitempty"`
}

var (
	// ErrNotFound means that there is no entry, run, token or cause with this id or name.
	ErrNotFound = errors.New("not found")
	// ErrConflict means that a name is taken, or that an entry or a run is in another state: a [*Conflict].
	ErrConflict = errors.New("conflict")
	// ErrInvalid means that the request itself is wrong; nothing was changed.
	ErrInvalid = errors.New("invalid request")
	// ErrUnavailable means that a store could not be opened because its database does not answer; a later attempt may
	// succeed.
	ErrUnavailable = errors.New("the store does not answer")
	// ErrForbidden means that this person may not do it: for example approve their own run, or send more than one person
	// may alone.
	ErrForbidden = errors.New("not allowed")
	// ErrClosed means that the store, or its owner, was closed.
	ErrClosed = errors.New("closed")
)

// Conflict is the error for the slower of two callers: the change was refused, because someone else had changed the
// entry, or the run.
type Conflict struct { //nolint:errname // the name of its schema in the API
	EntryID    int64     `json:"entry_id,omitempty" doc:"The entry."`
	Run        string    `json:"run,omitempty" doc:"The run."`
	Action     Action    `json:"action" doc:"The requested action."`
	Status     string    `json:"status" doc:"The entry's status, or the run's state, now."`
	Version    int64     `json:"version" doc:"Its version now."`
	By         string    `json:"by" doc:"Who made the last change."`
	At         time.Time `json:"at" doc:"When they made it."`
	LeaseUntil time.Time `json:"lease_until,omitzero" doc:"When a redrive in flight is treated as lost."`
}

// Error has the requested action, the state of the entry or the run, and who brought it there.
func (c *Conflict) Error() string {
	what := "run " + c.Run
	if c.Run == "" {
		what = "entry " + strconv.FormatInt(c.EntryID, 10)
	}
	text := fmt.Sprintf("dlq: %s: cannot %s: it has been %s since %s (version %d)",
		what, strings.TrimPrefix(string(c.Action), "run "), c.Status, c.At.UTC().Format(time.RFC3339), c.Version)
	if c.By != "" {
		text += ", by " + c.By
	}
	if !c.LeaseUntil.IsZero() {
		text += "; its outcome is awaited until " + c.LeaseUntil.UTC().Format(time.RFC3339)
	}
	return text
}

// Is makes errors.Is(err, ErrConflict) true.
func (c *Conflict) Is(target error) bool { return target == ErrConflict }
