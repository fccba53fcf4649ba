package driver

import (
	"fmt"
	"strings"
)

// Status is where a dead letter is in its life. Its text is what the status column of the store holds.
type Status string

const (
	// Pending waits for a person or a rule to decide.
	Pending Status = "PENDING"
	// Retrying was sent back to its consumer, whose outcome is not known yet.
	Retrying Status = "RETRYING"
	// Parked has used up its redrives (Entry.RedriveBudget) or was parked: a person has to look at it. Neither a rule
	// nor a run over PENDING entries takes it.
	Parked Status = "PARKED"
	// Resolved is done: a redrive succeeded, or somebody said that it is taken care of.
	Resolved Status = "RESOLVED"
	// Discarded was given up on purpose. It is kept, and can be restored.
	Discarded Status = "DISCARDED"
)

// Statuses lists every status in the order of an entry's life.
func Statuses() []Status { return []Status{Pending, Retrying, Parked, Resolved, Discarded} }

// ParseStatus reads a status in any letter case. The error of an unknown one names those that there are.
func ParseStatus(text string) (Status, error) {
	status := Status(strings.ToUpper(strings.TrimSpace(text)))
	if !status.Valid() {
		return "", fmt.Errorf("%w: unknown status %q: one of %s", ErrInvalid, text, joinStatuses())
	}
	return status, nil
}

// Valid reports whether it is one of [Statuses].
func (s Status) Valid() bool {
	switch s {
	case Pending, Retrying, Parked, Resolved, Discarded:
		return true
	default:
		return false
	}
}

func joinStatuses() string {
	names := make([]string, 0, len(Statuses()))
	for _, s := range Statuses() {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}
