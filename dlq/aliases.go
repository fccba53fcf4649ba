package dlq

import "github.com/redrive-go/redrive/dlq/driver"

// What a dead letter consists of, and what a store has to do, is declared in package driver, where authors of stores
// find it.
type (
	Store         = driver.Store
	Action        = driver.Action
	AuditFilter   = driver.AuditFilter
	AuditRecord   = driver.AuditRecord
	Body          = driver.Body
	By            = driver.By
	Change        = driver.Change
	ConflictError = driver.ConflictError
	Counts        = driver.Counts
	Cursor        = driver.Cursor
	Entry         = driver.Entry
	Exported      = driver.Exported
	Filter        = driver.Filter
	Group         = driver.Group
	GroupQuery    = driver.GroupQuery
	HourCount     = driver.HourCount
	SpanCount     = driver.SpanCount
	Key           = driver.Key
	Listing       = driver.Listing
	NamedCounts   = driver.NamedCounts
	Order         = driver.Order
	Outcome       = driver.Outcome
	Page          = driver.Page
	PayloadField  = driver.PayloadField
	Purge         = driver.Purge
	Receipt       = driver.Receipt
	Result        = driver.Result
	Revision      = driver.Revision
	Stats         = driver.Stats
	StatsQuery    = driver.StatsQuery
	Status        = driver.Status
)

// The statuses of an entry; see [driver.Status].
const (
	Pending   = driver.Pending
	Retrying  = driver.Retrying
	Parked    = driver.Parked
	Resolved  = driver.Resolved
	Discarded = driver.Discarded
)

// The actions of the audit log; see [driver.Action].
const (
	ActionRedrive       = driver.ActionRedrive
	ActionPublished     = driver.ActionPublished
	ActionRelease       = driver.ActionRelease
	ActionReleaseByHand = driver.ActionReleaseByHand
	ActionSucceed       = driver.ActionSucceed
	ActionDie           = driver.ActionDie
	ActionResolve       = driver.ActionResolve
	ActionDiscard       = driver.ActionDiscard
	ActionRestore       = driver.ActionRestore
	ActionPark          = driver.ActionPark
	ActionEdit          = driver.ActionEdit
	ActionImport        = driver.ActionImport
	ActionPurge         = driver.ActionPurge
	ActionUnarchive     = driver.ActionUnarchive
	ActionRefused       = driver.ActionRefused
	ActionRead          = driver.ActionRead
)

// The answers to a dead letter, and the orders and the bound of a page; see [driver.Outcome] and [driver.Page].
const (
	Stored      = driver.Stored
	Seen        = driver.Seen
	DiedAgain   = driver.DiedAgain
	NewestFirst = driver.NewestFirst
	OldestFirst = driver.OldestFirst
	StoredFirst = driver.StoredFirst
	StoredLast  = driver.StoredLast
	MaxPage     = driver.MaxPage
)

// The errors that callers decide on.
var (
	ErrClosed    = driver.ErrClosed
	ErrConflict  = driver.ErrConflict
	ErrForbidden = driver.ErrForbidden
	ErrInvalid   = driver.ErrInvalid
	ErrNotFound  = driver.ErrNotFound
)

// FormatID is an entry's id as text: decimal.
func FormatID(id int64) string { return driver.FormatID(id) }

// ParseID reads an entry's id: a positive decimal number without sign or leading zero. The error wraps [ErrInvalid].
func ParseID(text string) (int64, error) { return driver.ParseID(text) }

// ParsePayloadField reads "customer.id=42"; see [driver.ParsePayloadField].
func ParsePayloadField(text string) (PayloadField, error) { return driver.ParsePayloadField(text) }

// ParseStatus reads a status in any letter case; see [driver.ParseStatus].
func ParseStatus(text string) (Status, error) { return driver.ParseStatus(text) }

// Statuses lists every status in the order of an entry's life.
func Statuses() []Status { return driver.Statuses() }
