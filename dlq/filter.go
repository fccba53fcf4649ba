package dlq

import (
	"fmt"
	"time"

	"github.com/redrive-go/redrive/envelope"
)

// Filter picks entries. Its fields are joined by "and"; a zero field does not filter.
type Filter struct {
	// IDs picks these entries.
	IDs []int64
	// Statuses picks entries in any of them.
	Statuses []Status
	// Topic, Consumer, EventType, Handler, Reason, ErrorClass, ErrorCode and Fingerprint must be equal.
	Topic, Consumer, EventType, Handler string
	Reason                              envelope.Reason
	ErrorClass, ErrorCode, Fingerprint  string
	// EventID, SourceTable, SourceID and CorrelationID must be equal.
	EventID, SourceTable, SourceID, CorrelationID string
	// ErrorText must occur in the error message, PayloadText in the payload. Letter case counts in the payload, and does not
	// in the error (ASCII letters at least; the database decides about others). PayloadText reads every payload that the other
	// fields leave: give it company.
	ErrorText, PayloadText string
	// CauseText must occur in the group's normalized error. It is answered from the groups, so it is fast on any table size,
	// but it cannot see numbers, ids and quoted values.
	CauseText string
	// From and To bound CreatedAt: at or after From, before To.
	From, To time.Time
	// ResolvedBefore picks entries that were closed before it.
	ResolvedBefore time.Time
	// Run picks the entries that this redrive run claimed last.
	Run string
}

// Validate reports what is wrong with the filter; the error wraps [ErrInvalid].
func (f *Filter) Validate() error {
	for _, s := range f.Statuses {
		if !s.valid() {
			return fmt.Errorf("%w: unknown status %q: one of %s", ErrInvalid, s, joinStatuses())
		}
	}
	if !f.From.IsZero() && !f.To.IsZero() && !f.From.Before(f.To) {
		return fmt.Errorf("%w: empty time range: from %s is not before to %s", ErrInvalid,
			f.From.Format(time.RFC3339), f.To.Format(time.RFC3339))
	}
	return nil
}
