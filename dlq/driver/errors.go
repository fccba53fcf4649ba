package driver

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrNotFound means that there is no entry, or run, with this id.
	ErrNotFound = errors.New("no such entry")
	// ErrConflict means that the entry is not in the state that the change needs. The error is a [*ConflictError].
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

// ConflictError is the error for the slower of two callers: the change was refused, because someone else had changed
// the entry.
type ConflictError struct {
	// ID is the entry and Action the requested action.
	ID     int64
	Action Action
	// Status and Version are the entry's current ones.
	Status  Status
	Version int64
	// By and At are who changed it to that status, and when.
	By string
	At time.Time
	// LeaseUntil is when a redrive in flight counts as lost; zero if there is none.
	LeaseUntil time.Time
}

// Error reports the request, the entry's state, and who made it so.
func (e *ConflictError) Error() string {
	text := fmt.Sprintf("dlq: entry %d: cannot %s: it is %s since %s (version %d)",
		e.ID, e.Action, e.Status, e.At.UTC().Format(time.RFC3339), e.Version)
	if e.By != "" {
		text += ", by " + e.By
	}
	if !e.LeaseUntil.IsZero() {
		text += "; its outcome is awaited until " + e.LeaseUntil.UTC().Format(time.RFC3339)
	}
	return text
}

// Is makes errors.Is(err, ErrConflict) true.
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

func conflict(e *Entry, action Action) error {
	c := &ConflictError{ID: e.ID, Action: action, Status: e.Status, Version: e.Version, By: e.ChangedBy, At: e.ChangedAt}
	if e.Status == Retrying {
		c.LeaseUntil = e.LeaseUntil
	}
	return c
}
