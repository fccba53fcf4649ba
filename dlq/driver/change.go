package driver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The actions on an entry.
const (
	// ActionRedrive claims the entry for sending it back: PENDING, PARKED, or overdue RETRYING, to RETRYING.
	ActionRedrive Action = "redrive"
	// ActionPublished records that the broker confirmed the redriven message; the lease then waits for the outcome.
	ActionPublished Action = "published"
	// ActionRelease releases a claim, because the message could not be published: RETRYING to PENDING or to PARKED, as it
	// was before (see [Change.Before]).
	ActionRelease Action = "release"
	// ActionReleaseByHand ends the wait for an outcome that a person knows will not arrive, before its lease ends:
	// RETRYING to PENDING, or to PARKED when its redrives are used up. The redrive still counts, and so does a late
	// outcome. It needs a note.
	ActionReleaseByHand Action = "release by hand"
	// ActionSucceed records that the consumer handled the redriven message, or that its publish is the only outcome: to
	// RESOLVED.
	ActionSucceed Action = "succeed"
	// ActionDie records that the redriven message died again: to PENDING, or to PARKED when its redrives are used up.
	ActionDie Action = "die"
	// ActionResolve marks the entry as taken care of: PENDING, PARKED, or overdue RETRYING, to RESOLVED.
	ActionResolve Action = "resolve"
	// ActionDiscard gives up on the entry: PENDING, PARKED, or overdue RETRYING, to DISCARDED.
	ActionDiscard Action = "discard"
	// ActionRestore undoes resolve, discard or park: RESOLVED, DISCARDED or PARKED to PENDING.
	ActionRestore Action = "restore"
	// ActionPark sets the entry aside for a person: PENDING, or overdue RETRYING, to PARKED.
	ActionPark Action = "park"
	// ActionEdit gives a PENDING or PARKED entry a new revision of its body. See [Store.Revise].
	ActionEdit Action = "edit"
	// ActionImport stored the entry from an export.
	ActionImport Action = "import"
	// ActionPurge removed the entry from the store, into the archive if there is one.
	ActionPurge Action = "purge"
	// ActionUnarchive restored a purged entry from the archive.
	ActionUnarchive Action = "unarchive"
	// ActionRefused records a refused search or preview, which would have revealed values hidden from the caller.
	ActionRefused Action = "refused"
	// ActionRead records that someone read the entry's message, in a server that records reads.
	ActionRead Action = "read"
)

// From returns the states in which an entry allows an action. An overdue RETRYING entry also allows what reserves,
// closes or parks it, see [Entry.Overdue].
func From(a Action) []Status {
	switch a {
	case ActionRedrive, ActionResolve, ActionDiscard, ActionEdit:
		return []Status{Pending, Parked}
	case ActionPark:
		return []Status{Pending}
	case ActionPublished, ActionRelease, ActionReleaseByHand:
		return []Status{Retrying}
	case ActionSucceed:
		// PENDING and PARKED with a report: the message of a redrive that timed out may succeed after its claim was
		// released.
		return []Status{Retrying, Pending, Parked}
	case ActionRestore:
		return []Status{Resolved, Discarded, Parked}
	default:
		return nil
	}
}

// Change is one action of a [Store] on some entries. Each entry is changed independently: one in another state does not
// stop the others.
type Change struct {
	// Action is the action. Required; not ActionDie (use [Store.Put]), ActionEdit ([Store.Revise]), ActionImport
	// ([Store.Import]) or ActionPurge ([Store.Purge]).
	Action Action
	// IDs are the entries. Required.
	IDs []int64
	// Version, unless 0, must be the entry's, else nothing is changed.
	Version int64
	// Actor is who does it. Required. Note explains why, for the audit log.
	Actor, Note string
	// ResolvedBy, for ActionResolve, is who took care of it, if not the Actor.
	ResolvedBy string
	// At is the time of the change. Required.
	At time.Time
	// Lease is how long the entry is reserved: from At to the publish for ActionRedrive, to the outcome for
	// ActionPublished. Required for these two.
	Lease time.Duration
	// Run is the redrive run that claims; empty for a single redrive.
	Run string
	// Before, for ActionRelease, is the status before the claim, PENDING or PARKED. Otherwise the redrives decide.
	Before Status
	// Reports, for ActionSucceed, has for each of the IDs, in order, which redrive succeeded. Nil when there is no
	// report, and the broker's confirm is the outcome.
	Reports []Report
}

// Report is a consumer's report about a redriven message that it has handled. Empty fields are not checked.
type Report struct {
	// MessageID, Topic and Consumer must be the entry's, Number that of an outstanding redrive: a message may carry
	// another one's headers, and anyone can write them.
	MessageID, Topic, Consumer string
	Number                     int
}

// fits checks that the report is of an outstanding redrive of the entry.
func (r *Report) fits(e *Entry) error {
	agree := func(said, is string) bool { return said == "" || is == "" || said == is }
	switch {
	case !agree(r.MessageID, e.EventID):
		return fmt.Errorf("%w: entry %d is message %q, not %q", ErrInvalid, e.ID, e.EventID, r.MessageID)
	case !agree(r.Topic, e.Origin.Topic), !agree(r.Consumer, e.Origin.Consumer):
		return fmt.Errorf("%w: entry %d is of topic %q and consumer %q, not of %q and %q", ErrInvalid, e.ID,
			e.Origin.Topic, e.Origin.Consumer, r.Topic, r.Consumer)
	case !e.redriven(r.Number):
		return fmt.Errorf("%w: entry %d has no redrive %d whose outcome is awaited", ErrInvalid, e.ID, r.Number)
	default:
		return nil
	}
}

// redriven reports whether the entry has been redriven at least number times. A released claim does not count, although
// its message may have been published.
func (e *Entry) redriven(number int) bool {
	return !e.LastRedriveAt.IsZero() && number <= e.RedriveCount+1
}

// For is the change for the i-th of the IDs, which a [Store] applies to that entry.
func (c Change) For(i int) Change {
	if c.Reports != nil {
		c.Reports = c.Reports[i : i+1]
	}
	return c
}

// Result is the result of a [Change] for one entry.
type Result struct {
	ID int64
	// Entry is the entry after the change, without Body, or its current state when the change was refused. Zero if it
	// does not exist.
	Entry Entry
	// Err is nil, or wraps ErrNotFound, ErrConflict or ErrInvalid.
	Err error
}

// Validate reports what is missing in the change.
func (c *Change) Validate() error {
	switch {
	case c.Reports != nil && len(c.Reports) != len(c.IDs):
		return fmt.Errorf("%w: %d reports for %d entries", ErrInvalid, len(c.Reports), len(c.IDs))
	case len(c.IDs) == 0:
		return fmt.Errorf("%w: change without entry ids", ErrInvalid)
	case c.Actor == "":
		return fmt.Errorf("%w: %s without an actor: name the person who does it", ErrInvalid, c.Action)
	case c.At.IsZero():
		return fmt.Errorf("%w: %s without a time", ErrInvalid, c.Action)
	}
	switch c.Action {
	case ActionRedrive, ActionPublished:
		if c.Lease <= 0 {
			return fmt.Errorf("%w: %s without a lease", ErrInvalid, c.Action)
		}
	case ActionReleaseByHand:
		if strings.TrimSpace(c.Note) == "" {
			return fmt.Errorf("%w: %s without a note: explain why there will be no outcome", ErrInvalid, c.Action)
		}
	case ActionRelease, ActionSucceed, ActionResolve, ActionDiscard, ActionRestore, ActionPark:
	default:
		return fmt.Errorf("%w: action %q is not a change of state", ErrInvalid, c.Action)
	}
	return nil
}

// Detail is the additional detail in the change's audit record.
func (c *Change) Detail() map[string]string {
	if c.Action != ActionResolve || c.ResolvedBy == "" || c.ResolvedBy == c.Actor {
		return nil
	}
	return map[string]string{"resolved_by": c.ResolvedBy}
}

// Audited reports whether the change leaves a record in the audit log, as every change of status does.
func (c *Change) Audited() bool { return c.Action != ActionPublished }

// Apply is the state machine: it returns the entry after the change, or a [*ConflictError] when its state does not
// allow it. It has no side effects; a [Store] calls it on a row that it has locked, so that all stores agree on what is
// legal.
func (c *Change) Apply(e Entry) (Entry, error) {
	if len(c.Reports) > 0 {
		if err := c.Reports[0].fits(&e); err != nil {
			return e, err
		}
	}
	if c.Version != 0 && c.Version != e.Version || !c.legal(&e) {
		return e, conflict(&e, c.Action)
	}
	at := c.At.UTC().Truncate(time.Microsecond)
	switch c.Action {
	case ActionRedrive:
		e.Status, e.Run = Retrying, c.Run
		e.RedriveCount++
		e.LastRedriveAt, e.LeaseUntil, e.SucceededAt = at, at.Add(c.Lease), time.Time{} // a success is the last redrive's
	case ActionPublished:
		// Not a change of state: ChangedBy remains the actor who claimed the entry.
		e.LeaseUntil = at.Add(c.Lease)
		e.Version++
		return e, nil
	case ActionRelease:
		e.RedriveCount--
		e.Status, e.LeaseUntil = e.waiting(), time.Time{}
		if slices.Contains(From(ActionRedrive), c.Before) {
			e.Status = c.Before
		}
	case ActionReleaseByHand:
		e.Status, e.LeaseUntil = e.waiting(), time.Time{}
	case ActionSucceed:
		e.Status, e.SucceededAt = Resolved, at
		e.close(at, c.Actor)
	case ActionResolve:
		e.Status = Resolved
		e.close(at, cmp.Or(c.ResolvedBy, c.Actor))
	case ActionDiscard:
		e.Status = Discarded
		e.close(at, c.Actor)
	case ActionRestore:
		e.Status, e.ResolvedAt, e.ResolvedBy = Pending, time.Time{}, ""
	case ActionPark:
		e.Status, e.LeaseUntil = Parked, time.Time{}
	case ActionEdit: // the store adds the revision
	default:
		return e, fmt.Errorf("%w: action %q is not a change of state", ErrInvalid, c.Action)
	}
	e.Version++
	e.ChangedAt, e.ChangedBy = at, c.Actor
	return e, nil
}

func (c *Change) legal(e *Entry) bool {
	from := slices.Contains(From(c.Action), e.Status)
	switch c.Action {
	case ActionRedrive:
		// A run may claim again what it had claimed itself, if the entry has not changed since (see RunItem.Settle).
		mine := c.Run != "" && e.Run == c.Run && c.Version != 0
		return from || e.Overdue(c.At) || e.Status == Retrying && mine
	case ActionResolve, ActionDiscard, ActionPark:
		return from || e.Overdue(c.At)
	case ActionSucceed:
		// Without a report only an outstanding redrive succeeds: the message may have died again before its batch was
		// confirmed. A success reported a second time, after a restore, is ignored; the times are from one clock then. So
		// is one of a redrive before the last that died.
		if len(c.Reports) == 0 {
			from = e.Status == Retrying
		} else if n := c.Reports[0].Number; n > 0 && n < e.DeathRedrive {
			return false
		}
		return from && c.At.UTC().Truncate(time.Microsecond).After(e.SucceededAt)
	default:
		return from
	}
}

// close records when and by whom, for RESOLVED and DISCARDED: statistics and purges use it.
func (e *Entry) close(at time.Time, by string) {
	e.ResolvedAt, e.ResolvedBy, e.LeaseUntil = at, by, time.Time{}
}

// waiting is the status of an entry whose redrive ended without success: it waits for a rule or a run or, when its
// redrives are used up, for a person.
func (e *Entry) waiting() Status {
	if e.RedriveCount > 0 && e.RedriveCount >= e.RedriveBudget {
		return Parked
	}
	return Pending
}

func conflict(e *Entry, action Action) error {
	c := &ConflictError{
		EntryID: e.ID, Action: action, Status: string(e.Status), Version: e.Version, By: e.ChangedBy, At: e.ChangedAt,
	}
	if e.Status == Retrying {
		c.LeaseUntil = e.LeaseUntil
	}
	return c
}

// PutResult is what [Store.Put] did with a dead letter.
type PutResult string

const (
	// Stored means that it is a new entry.
	Stored PutResult = "stored"
	// Seen means that the entry exists and this death was reported before. Only SeenCount changed.
	Seen PutResult = "seen"
	// DiedAgain means that the entry had been redriven, or closed, and is PENDING again, or PARKED when its redrives are
	// used up. If a later redrive was handled or is in flight, its status stays.
	DiedAgain PutResult = "died again"
)

// Receipt is the result for one dead letter.
type Receipt struct {
	ID     int64
	Result PutResult
}

// Belongs reports whether e, a dead letter about to be stored, is the redriven message of the entry owner. A handler
// may copy the headers of a redriven message to messages that it sends; those have other topics, consumers or ids, and
// are separate dead letters. So is one of a redrive that never happened.
func (e *Entry) Belongs(owner *Entry) bool {
	return e.RedriveOf == owner.ID && e.EventID == owner.EventID &&
		e.Origin.Topic == owner.Origin.Topic && (owner.Origin.Consumer == "" || e.Origin.Consumer == owner.Origin.Consumer) &&
		owner.redriven(e.DeathRedrive)
}

// Die is the entry e after the death d of the same message, and whether that death is new. It has no side effects; a
// [Store] calls it on a row that it has locked.
//
// A death is new when it belongs to a later redrive than the last recorded one. If the broker has no positions, the
// producer may have sent the same message again after the entry was closed: that is new as well, while a report older
// than the closing is a redelivery after a crash.
func (e Entry) Die(d *Entry) (Entry, PutResult) {
	again := d.RedriveOf == e.ID && d.DeathRedrive > e.DeathRedrive
	resent := d.RedriveOf != e.ID && d.Origin.Position == "" && (e.Status == Resolved || e.Status == Discarded) &&
		d.DiedAt.After(e.ChangedAt)
	if d.LastSeenAt.After(e.LastSeenAt) {
		e.LastSeenAt = d.LastSeenAt
	}
	if !again && !resent {
		e.SeenCount++
		return e, Seen
	}
	if again {
		e.DeathRedrive = d.DeathRedrive
		e.RedriveCount = max(e.RedriveCount, d.DeathRedrive)
	}
	// A redrive after the one that died decides, if it was handled or is in flight. An entry that an operator has
	// discarded stays discarded when a late redrive dies.
	decided := e.Status == Discarded || d.DeathRedrive < e.RedriveCount &&
		(!e.SucceededAt.IsZero() || e.Status == Retrying && !e.Overdue(d.DiedAt))
	if resent || !decided {
		e.Status = Pending
		if again {
			e.Status = e.waiting()
		}
		e.ResolvedAt, e.ResolvedBy, e.LeaseUntil = time.Time{}, "", time.Time{}
		e.ChangedAt, e.ChangedBy = d.DiedAt, d.DiedBy()
	}
	e.Reason, e.ErrorMessage, e.ErrorCode, e.ErrorClass, e.Rule = d.Reason, d.ErrorMessage, d.ErrorCode, d.ErrorClass,
		d.Rule
	e.Cause, e.Fingerprint, e.Attempts, e.Handler = d.Cause, d.Fingerprint, d.Attempts, d.Handler
	e.DiedAt, e.SeenCount = d.DiedAt, 1
	e.Version++
	return e, DiedAgain
}

// DiedBy is the actor of a death in the audit log: the consumer, or the handler if the consumer has no name.
func (e *Entry) DiedBy() string {
	if e.Origin.Consumer == "" {
		return "handler " + e.Handler
	}
	return "consumer " + e.Origin.Consumer
}
