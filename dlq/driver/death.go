package driver

import "time"

// PutResult is what [Store.Put] did with a dead letter.
type PutResult string

const (
	// Stored means that it is a new entry.
	Stored PutResult = "stored"
	// Seen means that the entry exists and this death was reported before. Only SeenCount changed.
	Seen PutResult = "seen"
	// DiedAgain means that the entry had been redriven, or closed, and is PENDING again, or PARKED when its redrives are
	// used up.
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
	e.LastSeenAt = later(e.LastSeenAt, d.LastSeenAt)
	if !again && !resent {
		e.SeenCount++
		return e, Seen
	}
	if again {
		e.DeathRedrive = d.DeathRedrive
		e.RedriveCount = max(e.RedriveCount, d.DeathRedrive)
	}
	// An entry that an operator has discarded stays discarded when a late redrive dies.
	if e.Status != Discarded || resent {
		e.Status = Pending
		if again {
			e.Status = e.waiting()
		}
		e.ResolvedAt, e.ResolvedBy = time.Time{}, ""
	}
	e.LeaseUntil = time.Time{}
	e.Reason, e.ErrorMessage, e.ErrorCode, e.ErrorClass, e.Rule = d.Reason, d.ErrorMessage, d.ErrorCode, d.ErrorClass,
		d.Rule
	e.Cause, e.Fingerprint, e.Attempts, e.Handler = d.Cause, d.Fingerprint, d.Attempts, d.Handler
	e.DiedAt, e.SeenCount = d.DiedAt, 1
	e.ChangedAt, e.ChangedBy = d.DiedAt, d.DiedBy()
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

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
