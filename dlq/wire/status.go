package wire

import "slices"

// Status is the state of a dead letter. Its text is the content of the store's status column.
type Status string

const (
	// Pending waits for a decision by a person or a rule.
	Pending Status = "PENDING"
	// Retrying was sent back to its consumer, and its outcome is not known yet.
	Retrying Status = "RETRYING"
	// Parked has used up its redrives (Entry.RedriveBudget) or was parked: a person has to look at it. Rules, and runs
	// over PENDING entries, skip it.
	Parked Status = "PARKED"
	// Resolved is done: a redrive succeeded, or someone took care of it.
	Resolved Status = "RESOLVED"
	// Discarded was given up deliberately. It is kept, and can be restored.
	Discarded Status = "DISCARDED"
)

// Statuses lists every status in the order of an entry's life.
func Statuses() []Status { return []Status{Pending, Retrying, Parked, Resolved, Discarded} }

// Valid reports whether it is one of [Statuses].
func (s Status) Valid() bool { return slices.Contains(Statuses(), s) }
