package driver

import (
	"fmt"
	"strings"

	"github.com/redrive-go/redrive/dlq/wire"
)

// Status is the state of a dead letter. Its text is the content of the store's status column.
type Status = wire.Status

// The statuses of an entry; see [wire.Status].
const (
	Pending   = wire.Pending
	Retrying  = wire.Retrying
	Parked    = wire.Parked
	Resolved  = wire.Resolved
	Discarded = wire.Discarded
)

// Statuses lists every status in the order of an entry's life.
func Statuses() []Status { return wire.Statuses() }

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
