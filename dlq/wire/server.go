package wire

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Me is the caller, and what the server allows it.
type Me struct {
	Name     string `json:"name" doc:"The name in the audit log."`
	Role     string `json:"role" enum:"viewer,operator,approver,admin"`
	ReadOnly bool   `json:"read_only" doc:"The server rejects every change."`
	Redacted bool   `json:"redacted" doc:"Some values are hidden from the caller."`
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
	// ErrNotFound means that there is no entry, or run, with this id.
	ErrNotFound = errors.New("no such entry")
	// ErrConflict means that the entry is not in the state that the change needs. The error is a [*Conflict].
	ErrConflict = errors.New("entry is in another state")
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
	text := fmt.Sprintf("dlq: %s: cannot %s: it is %s since %s (version %d)",
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
