package driver

import (
	"fmt"
	"strings"

	"github.com/redrive-go/redrive/dlq/wire"
)

// Status is the state of a dead letter. Its text is the content of the store's status column.
type Status = wire.Status

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

// ParseStatus reads a status in any letter case. The error for an unknown one lists the statuses.
func ParseStatus(text string) (Status, error) {
	status := Status(strings.ToUpper(strings.TrimSpace(text)))
	if !status.Valid() {
		return "", fmt.Errorf("%w: unknown status %q: one of %s", ErrInvalid, text, joinStatuses())
	}
	return status, nil
}

func joinStatuses() string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(Statuses()), "[]"), " ", ", ")
}
