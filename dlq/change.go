package dlq

import (
	"fmt"
	"time"
)

// Action is what is done to an entry. Its text stands in the audit log.
type Action string

const (
	// ActionRedrive claims the entry for sending it back: PENDING, or overdue RETRYING, to RETRYING.
	ActionRedrive Action = "redrive"
	// ActionPublished records that the broker confirmed the redriven message; the lease then waits for the outcome.
	ActionPublished Action = "published"
	// ActionRelease gives a claim back, because the message could not be published: RETRYING to PENDING.
	ActionRelease Action = "release"
	// ActionSucceed records that the consumer handled the redriven message: to RESOLVED.
	ActionSucceed Action = "succeed"
	// ActionDie records that the redriven message died again: to PENDING.
	ActionDie Action = "die"
	// ActionResolve says that it is taken care of: PENDING, or overdue RETRYING, to RESOLVED.
	ActionResolve Action = "resolve"
	// ActionDiscard gives the entry up: PENDING, or overdue RETRYING, to DISCARDED.
	ActionDiscard Action = "discard"
	// ActionRestore takes resolve or discard back: RESOLVED or DISCARDED to PENDING.
	ActionRestore Action = "restore"
	// ActionPurge removed the entry from the store, into the archive when one was asked for.
	ActionPurge Action = "purge"
)

// Change asks a [Store] for one action on some entries. Each entry is changed alone: one that is in another state does not stop
// the others.
type Change struct {
	// Action is what to do. Required; not ActionDie (that is [Store.Put]) and not ActionPurge ([Store.Purge]).
	Action Action
	// IDs are the entries. Required.
	IDs []int64
	// Version, unless 0, must be the entry's, else nothing is changed.
	Version int64
	// Actor is who does it. Required. Note says why, for the audit log.
	Actor, Note string
	// At is the time of the change. Required.
	At time.Time
	// Lease is how long the entry is kept from others: from At to the publish for ActionRedrive, to the outcome for
	// ActionPublished. Required for these two.
	Lease time.Duration
	// Run is the redrive run that claims; empty for a single redrive.
	Run string
	// MessageID, unless empty, must be the entry's EventID: a redriven message of another store must not close our entry.
	MessageID string
}

// Result is what became of one entry of a [Change].
type Result struct {
	ID int64
	// Entry is the entry after the change, without Body, or as it is when the change was refused. Zero when there is none.
	Entry Entry
	// Err is nil, or wraps ErrNotFound, ErrConflict or ErrInvalid.
	Err error
}

// Validate reports what is missing in the change.
func (c *Change) Validate() error {
	switch {
	case len(c.IDs) == 0:
		return fmt.Errorf("%w: change without entry ids", ErrInvalid)
	case c.Actor == "":
		return fmt.Errorf("%w: %s without an actor: say who does it", ErrInvalid, c.Action)
	case c.At.IsZero():
		return fmt.Errorf("%w: %s without a time", ErrInvalid, c.Action)
	}
	switch c.Action {
	case ActionRedrive, ActionPublished:
		if c.Lease <= 0 {
			return fmt.Errorf("%w: %s without a lease", ErrInvalid, c.Action)
		}
	case ActionRelease, ActionSucceed, ActionResolve, ActionDiscard, ActionRestore:
	default:
		return fmt.Errorf("%w: action %q is not a change of state", ErrInvalid, c.Action)
	}
	return nil
}

// Audited reports whether the change leaves a record in the audit log. All do that change a status.
func (c *Change) Audited() bool { return c.Action != ActionPublished }

// Apply is the state machine: the entry as it is after the change, or a [*ConflictError] when it is not in a state for it. It
// touches nothing; a [Store] calls it on the row that it holds locked, so that all stores agree on what is legal.
func (c *Change) Apply(e Entry) (Entry, error) {
	if c.MessageID != "" && c.MessageID != e.EventID {
		return e, fmt.Errorf("%w: entry %d is message %q, not %q", ErrInvalid, e.ID, e.EventID, c.MessageID)
	}
	if c.Version != 0 && c.Version != e.Version || !c.legal(&e) {
		return e, conflict(&e, c.Action)
	}
	at := c.At.UTC().Truncate(time.Microsecond)
	switch c.Action {
	case ActionRedrive:
		e.Status, e.Run = Retrying, c.Run
		e.RedriveCount++
		e.LastRedriveAt, e.LeaseUntil = at, at.Add(c.Lease)
	case ActionPublished:
		// Not a change of state: who claimed it still stands as the one who changed it.
		e.LeaseUntil = at.Add(c.Lease)
		e.Version++
		return e, nil
	case ActionRelease:
		e.Status, e.LeaseUntil = Pending, time.Time{}
		e.RedriveCount--
	case ActionSucceed:
		e.Status, e.SucceededAt = Resolved, at
		e.close(at, c.Actor)
	case ActionResolve:
		e.Status = Resolved
		e.close(at, c.Actor)
	case ActionDiscard:
		e.Status = Discarded
		e.close(at, c.Actor)
	case ActionRestore:
		e.Status, e.ResolvedAt, e.ResolvedBy = Pending, time.Time{}, ""
	default:
		return e, fmt.Errorf("%w: action %q is not a change of state", ErrInvalid, c.Action)
	}
	e.Version++
	e.ChangedAt, e.ChangedBy = at, c.Actor
	return e, nil
}

func (c *Change) legal(e *Entry) bool {
	switch c.Action {
	case ActionRedrive, ActionResolve, ActionDiscard:
		return e.Status == Pending || e.Overdue(c.At)
	case ActionPublished, ActionRelease:
		return e.Status == Retrying
	case ActionSucceed:
		// PENDING too: the copy of a redrive that timed out may succeed after its claim was given back. A success that is
		// reported a second time, after a restore, is old news.
		return (e.Status == Retrying || e.Status == Pending) && c.At.UTC().Truncate(time.Microsecond).After(e.SucceededAt)
	case ActionRestore:
		return e.Status == Resolved || e.Status == Discarded
	default:
		return false
	}
}

// close keeps when and by whom, for RESOLVED and DISCARDED alike: C30 measures it and C34 purges by it.
func (e *Entry) close(at time.Time, by string) {
	e.ResolvedAt, e.ResolvedBy, e.LeaseUntil = at, by, time.Time{}
}
