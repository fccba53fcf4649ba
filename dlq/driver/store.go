package driver

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/dlq/wire"
)

// Reader is the part of a [Store] that reads, which a Manager of package dlq has, too.
type Reader interface {
	// Get returns an entry with the body that a redrive would send. The error wraps ErrNotFound if it does not exist.
	Get(ctx context.Context, id int64) (*Entry, error)
	// Body returns one revision of an entry's body: 0 is the original, Entry.Revision the one that a redrive sends. The
	// error wraps ErrNotFound if it does not exist.
	Body(ctx context.Context, id int64, revision int) (*Body, error)
	// List returns a page of the entries that the filter selects, without their bodies.
	List(ctx context.Context, f Filter, p Page) (Listing, error)
	// Count returns how many entries the filter selects, counting no further than limit; 0 means no limit.
	Count(ctx context.Context, f Filter, limit int64) (int64, error)
	// Groups returns the causes, those with the most entries first.
	Groups(ctx context.Context, q GroupQuery) ([]Group, error)
	// Stats returns the numbers of a dashboard without scanning the entries.
	Stats(ctx context.Context, q StatsQuery) (Stats, error)
	// Ping reports whether the store can take a dead letter now.
	Ping(ctx context.Context) error
}

// Store keeps dead letters. Implementations are safe for concurrent use by many goroutines and many processes, and pass
// the suite in dlq/dlqtest. Their errors wrap [ErrNotFound], [ErrConflict] and [ErrInvalid] where these apply; any
// other error means that the store could not be reached or did not answer, and that the call may be repeated.
//
// Optional abilities of a store are separate interfaces, found by [As], because a store may be wrapped.
type Store interface {
	Reader
	// Put stores dead letters and returns when they are durable, with one receipt for each, in their order. It is
	// idempotent: an entry whose Key exists is not stored again, and one with RedriveOf updates its entry (see
	// [Entry.Die]). After an error none, some or all may have been stored; repeat the call. Only if it wraps ErrInvalid
	// will the store never accept one of them, and the spool sets that one aside for a person. Concurrent calls may be
	// combined into one write. The entries are neither changed nor retained.
	Put(ctx context.Context, letters ...*Entry) ([]Receipt, error)
	// Change applies one action to some entries, each by compare-and-set in the state machine of [Change.Apply], and
	// records it in the audit log in the same transaction. The results are in the order of the ids. An error concerns the
	// whole call: nothing was changed, or that is not known.
	Change(ctx context.Context, c Change) ([]Result, error)
	// Revise gives an entry a new revision of its body, by compare-and-set and with a record in the audit log; earlier
	// revisions remain. The error wraps ErrNotFound, ErrConflict or ErrInvalid when nothing was changed.
	Revise(ctx context.Context, r Revision) (*Entry, error)
	// Import stores entries unchanged, with their state, all revisions of their bodies and new ids, unless their Key
	// exists, also in the archive: then the Outcome is Seen and nothing is changed. One transaction, all or none.
	Import(ctx context.Context, by By, at time.Time, letters ...Exported) ([]Receipt, error)
	// Purge removes closed entries, and returns how many. Call it again while it returns Purge.Limit.
	Purge(ctx context.Context, p Purge) (int, error)
	// Audit returns audit records, newest first unless the page asks for the oldest first, and the cursor of the next
	// page.
	Audit(ctx context.Context, f AuditFilter, p Page) ([]AuditRecord, string, error)
	// Recount rebuilds the statistics from all entries, after the tables were changed by hand.
	Recount(ctx context.Context) error
	// Close finishes pending work and closes the store. Later calls return ErrClosed. It may be called more than once.
	Close() error
}

// Purge removes old closed entries from a [Store].
type Purge struct {
	// Statuses are RESOLVED, DISCARDED or both. Defaults to RESOLVED: entries that wait for a person are never purged,
	// and discarded ones only on request.
	Statuses []Status
	// ClosedBefore selects entries that were closed before it. Required.
	ClosedBefore time.Time
	// SkipArchive removes without a copy. By default each entry, body included, is copied to the archive in the
	// transaction that removes it.
	SkipArchive bool
	// Limit is the maximum number of entries in one call, and one transaction. Defaults to 1,000.
	Limit int
	// Actor is who purges. Required. Note explains why. At is when. Required.
	Actor, Note string
	At          time.Time
}

// Resolve fills in the defaults, and reports faults as [ErrInvalid].
func (p Purge) Resolve() (Purge, error) {
	if len(p.Statuses) == 0 {
		p.Statuses = []Status{Resolved}
	}
	for _, s := range p.Statuses {
		if s != Resolved && s != Discarded {
			return p, fmt.Errorf("%w: purge removes %s and %s entries, not %q: resolve or discard them first",
				ErrInvalid, Resolved, Discarded, s)
		}
	}
	switch p.Limit = cmp.Or(p.Limit, MaxPage); {
	case p.Limit < 1 || p.Limit > MaxPage:
		return p, fmt.Errorf("%w: purge limit %d: from 1 to %d", ErrInvalid, p.Limit, MaxPage)
	case p.ClosedBefore.IsZero():
		return p, fmt.Errorf("%w: purge without ClosedBefore", ErrInvalid)
	case p.Actor == "" || p.At.IsZero():
		return p, fmt.Errorf("%w: purge without an actor or a time", ErrInvalid)
	}
	return p, nil
}

// What the methods of a [Store] take and return, where it has a JSON form; its parts are in package wire.
type (
	// Filter selects entries.
	Filter = wire.Filter
	// Page selects a part of a listing.
	Page = wire.Page
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
	MaxPage     = wire.MaxPage
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
