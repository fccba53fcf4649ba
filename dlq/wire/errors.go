package wire

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

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
