package driver

import "github.com/redrive-go/redrive/dlq/wire"

// The values of a [Store] that have a JSON form are types of package wire.
type (
	// Filter selects entries.
	Filter = wire.Filter
	// PayloadField is a field of a JSON payload and its required value.
	PayloadField = wire.PayloadField
	// Page selects a part of a listing.
	Page = wire.Page
	// Order is the order of a listing.
	Order = wire.Order
	// Cursor is a position in a listing.
	Cursor = wire.Cursor
	// Status is the state of a dead letter.
	Status = wire.Status
	// Action is an operation on an entry.
	Action = wire.Action
	// AuditRecord is one record of the audit log.
	AuditRecord = wire.AuditRecord
	// AuditFilter selects audit records.
	AuditFilter = wire.AuditFilter
	// Group is a cause: all entries with the same fingerprint.
	Group = wire.Group
	// GroupQuery selects groups.
	GroupQuery = wire.GroupQuery
	// Counts are numbers of entries by status.
	Counts = wire.Counts
	// NamedCounts are the counts of one event type or topic.
	NamedCounts = wire.NamedCounts
	// HourCount has the entries created and closed in an hour, and the repeated deaths.
	HourCount = wire.HourCount
	// SpanCount has the same of a shorter span.
	SpanCount = wire.SpanCount
	// Stats are the numbers of a dashboard.
	Stats = wire.Stats
	// StatsQuery selects statistics.
	StatsQuery = wire.StatsQuery
	// ConflictError is the error for the slower of two callers.
	ConflictError = wire.Conflict
)

// The constants of these types.
const (
	Pending   = wire.Pending
	Retrying  = wire.Retrying
	Parked    = wire.Parked
	Resolved  = wire.Resolved
	Discarded = wire.Discarded

	NewestFirst = wire.NewestFirst
	OldestFirst = wire.OldestFirst
	StoredFirst = wire.StoredFirst
	StoredLast  = wire.StoredLast

	MaxPage       = wire.MaxPage
	DefaultGroups = wire.DefaultGroups
	RecentSpan    = wire.RecentSpan
	RecentSpans   = wire.RecentSpans
)

// The errors of a [Store].
var (
	ErrNotFound    = wire.ErrNotFound
	ErrConflict    = wire.ErrConflict
	ErrInvalid     = wire.ErrInvalid
	ErrUnavailable = wire.ErrUnavailable
	ErrForbidden   = wire.ErrForbidden
	ErrClosed      = wire.ErrClosed
)

// Statuses lists every status in the order of an entry's life.
func Statuses() []Status { return wire.Statuses() }

// ParseStatus reads a status in any letter case. The error for an unknown one lists the statuses.
func ParseStatus(text string) (Status, error) { return wire.ParseStatus(text) }

// ParsePayloadField reads a field and its value, such as customer.id=42.
func ParsePayloadField(text string) (PayloadField, error) { return wire.ParsePayloadField(text) }

// Listing is a page of entries. Pages are found by their position in the order, not by counting: deep pages cost the
// same as the first, and new entries shift nothing.
type Listing struct {
	// Entries are without Body.
	Entries []Entry
	// Next continues the listing; empty on the last page.
	Next string
}

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

// FoldAudit joins the records of a run that have the same content, in place of the newest. Outcomes are reported by
// consumers, which do not know the run: consecutive ones are joined.
func FoldAudit(records []AuditRecord) []AuditRecord {
	type key struct {
		run, actor string
		action     Action
		to         Status
	}
	rows, at := make([]AuditRecord, 0, len(records)), map[key]int{}
	for i := range records {
		r := records[i]
		k := key{r.Run, r.Actor, r.Action, r.To}
		n, there := at[k]
		next := n == len(rows)-1 && (r.Action == ActionSucceed || r.Action == ActionDie)
		if there && r.EntryID != 0 && (r.Run != "" || next) {
			row := &rows[n]
			if len(row.Entries) == 0 {
				row.Entries = []int64{row.EntryID}
			}
			row.Entries, row.Since = append(row.Entries, r.EntryID), r.At
			continue
		}
		if r.EntryID != 0 {
			at[k] = len(rows)
		}
		rows = append(rows, r)
	}
	return rows
}
