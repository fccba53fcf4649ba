package driver

import "time"

// By is who makes a change and why. Both appear in the audit log.
type By struct {
	// Actor is who: a user's name, from the authenticator and not from the request. Required.
	Actor string
	// Note is why.
	Note string
	// Version, unless 0, must be the entry's, as it was read before: the change is refused when somebody was faster.
	Version int64
	// ResolvedBy is who took care of an entry that is resolved, where that is not the actor: a name that nobody has
	// proven. The audit log has both.
	ResolvedBy string
}

// AuditRecord is one line of the audit log: it is written in the transaction of the change it tells of, and never
// changed.
type AuditRecord struct {
	ID int64
	// At, Actor, Action and Note: when, who, what and why.
	At     time.Time
	Actor  string
	Action Action
	Note   string
	// EntryID is the entry; it may be gone by now. Run is the redrive run that it was part of, if any.
	EntryID int64
	Run     string
	// From and To are the entry's status before and after; Version is its version after.
	From, To Status
	Version  int64
	// Detail is more of what changed, by name: the error that a new death replaced, for example.
	Detail map[string]string
}

// AuditFilter picks audit records; a zero field does not filter.
type AuditFilter struct {
	EntryID int64
	Run     string
	Actor   string
	Action  Action
	// From and To bound At: at or after From, before To.
	From, To time.Time
}
