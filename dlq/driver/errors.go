package driver

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrNotFound means that no entry, or no run, has this id.
	ErrNotFound = errors.New("no such entry")
	// ErrConflict means that the entry is not in the state that the change needs. The error is a [*ConflictError].
	ErrConflict = errors.New("entry is in another state")
	// ErrInvalid means that the request itself is wrong; nothing was changed.
	ErrInvalid = errors.New("invalid request")
	// ErrUnavailable means that a store could not be opened because its database does not answer: it may be opened
	// later.
	ErrUnavailable = errors.New("the store does not answer")
	// ErrForbidden means that this person may not do it: approve their own run, for example, or send more than one
	// person may alone.
	ErrForbidden = errors.New("not allowed")
	// ErrClosed means that the store, or what holds it, was closed.
	ErrClosed = errors.New("closed")
)

// ConflictError is the answer to the one who came second: the change was not made, because somebody else had made
// theirs.
type ConflictError struct {
	// ID is the entry and Action what was requested.
	ID     int64
	Action Action
	// Status and Version are the entry's, now.
	Status  Status
	Version int64
	// By and At say who brought it there, and when.
	By string
	At time.Time
	// LeaseUntil is when a redrive in flight is treated as lost; zero without one.
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
