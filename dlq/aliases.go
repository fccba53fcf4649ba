package dlq

import "github.com/redrive-go/redrive/dlq/driver"

// The types that a program needs to work with a [Letters] and a [Manager]. The types of their results, and the
// interfaces of a store, are in package driver.
type (
	// Entry is a dead letter without its body; see [driver.Entry].
	Entry = driver.Entry
	// Body is a revision of an entry's message; see [driver.Body].
	Body = driver.Body
	// By is who changes an entry, why, and the version that they saw; see [driver.By].
	By = driver.By
	// Filter selects entries; see [driver.Filter].
	Filter = driver.Filter
	// Page is a part of a listing; see [driver.Page].
	Page = driver.Page
	// GroupQuery selects causes of dead letters; see [driver.GroupQuery].
	GroupQuery = driver.GroupQuery
	// StatsQuery selects the numbers of a dashboard; see [driver.StatsQuery].
	StatsQuery = driver.StatsQuery
	// AuditFilter selects records of the audit log; see [driver.AuditFilter].
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

// The errors that callers check for.
var (
	ErrClosed    = driver.ErrClosed
	ErrConflict  = driver.ErrConflict
	ErrForbidden = driver.ErrForbidden
	ErrInvalid   = driver.ErrInvalid
	ErrNotFound  = driver.ErrNotFound
)
