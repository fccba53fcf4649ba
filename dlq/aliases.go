package dlq

import "github.com/redrive-go/redrive/dlq/driver"

// What a program writes to work with a [Letters] and a [Manager]. What they answer with besides, and what a store has
// to do, is in package driver, where authors of stores find it, too.
type (
	// Entry is a dead letter without its body; see [driver.Entry].
	Entry = driver.Entry
	// Body is a revision of an entry's message; see [driver.Body].
	Body = driver.Body
	// By is who changes an entry, why, and which version of it was looked at; see [driver.By].
	By = driver.By
	// Filter picks entries; see [driver.Filter].
	Filter = driver.Filter
	// Page asks for a part of a listing; see [driver.Page].
	Page = driver.Page
	// GroupQuery asks for the causes of dead letters; see [driver.GroupQuery].
	GroupQuery = driver.GroupQuery
	// StatsQuery asks for the numbers of a dashboard; see [driver.StatsQuery].
	StatsQuery = driver.StatsQuery
	// AuditFilter picks records of the audit log; see [driver.AuditFilter].
	AuditFilter = driver.AuditFilter
	// Purge is an order to archive closed entries; see [driver.Purge].
	Purge = driver.Purge
	// Store is where entries are kept; see [driver.Store].
	Store = driver.Store
	// Status is where an entry is in its life; see [driver.Status].
	Status = driver.Status
)

// The statuses of an entry; see [driver.Status].
const (
	Pending   = driver.Pending
	Retrying  = driver.Retrying
	Parked    = driver.Parked
	Resolved  = driver.Resolved
	Discarded = driver.Discarded
)

// The errors that callers decide on.
var (
	ErrClosed    = driver.ErrClosed
	ErrConflict  = driver.ErrConflict
	ErrForbidden = driver.ErrForbidden
	ErrInvalid   = driver.ErrInvalid
	ErrNotFound  = driver.ErrNotFound
)
