package driver

import "time"

// By is who makes a change and why, for the audit log.
type By struct {
	// Actor is the authenticated user's name, not one from the request. Required.
	Actor string
	// Note is why.
	Note string
	// Version, unless 0, must be the entry's, as the caller read it: the change is refused if someone was faster.
	Version int64
	// ResolvedBy is who took care of a resolved entry, if that was not the actor: an unverified name. The audit log has
	// both.
	ResolvedBy string
}

// AuditRecord is one record of the audit log: written in the transaction of its change, and never changed.
type AuditRecord struct {
	ID     int64
	At     time.Time
	Actor  string
	Action Action
	Note   string
	// EntryID is the entry, which may no longer exist. Run is the redrive run that made the change, if any.
	EntryID int64
	Run     string
	// From and To are the entry's status before and after; Version is its version after.
	From, To Status
	Version  int64
	// Detail has more about the change, by name: for example the error that a new death replaced.
	Detail map[string]string
}

// AuditFilter selects audit records; zero fields do not filter.
type AuditFilter struct {
	EntryID int64
	Run     string
	Actor   string
	Action  Action
	// From and To bound At: at or after From, before To.
	From, To time.Time
}
