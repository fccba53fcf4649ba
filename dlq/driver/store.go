package driver

import (
	"context"
	"time"
)

// Store keeps dead letters. Implementations are safe for concurrent use by many goroutines and many processes, and pass
// the suite in dlq/dlqtest. Their errors wrap [ErrNotFound], [ErrConflict] and [ErrInvalid] where these apply; any
// other error means that the store could not be reached or did not answer, and that the call may be repeated.
//
// Optional abilities of a store are separate interfaces, found by [As], because a store may be wrapped.
type Store interface {
	// Put stores dead letters and returns when they are durable, with one receipt for each, in their order. It is
	// idempotent: an entry whose Key exists is not stored again, and one with RedriveOf updates its entry (see
	// [Entry.Die]). After an error none, some or all may have been stored; repeat the call. Concurrent calls may be
	// combined into one write. The entries are neither changed nor retained.
	Put(ctx context.Context, letters ...*Entry) ([]Receipt, error)
	// Get returns an entry with the body that a redrive would send. The error wraps ErrNotFound if it does not exist.
	Get(ctx context.Context, id int64) (*Entry, error)
	// Body returns one revision of an entry's body. The error wraps ErrNotFound if it does not exist.
	Body(ctx context.Context, id int64, revision int) (*Body, error)
	// List returns a page of the entries that the filter selects.
	List(ctx context.Context, f Filter, p Page) (Listing, error)
	// Count returns how many entries the filter selects, counting no further than limit; 0 means no limit.
	Count(ctx context.Context, f Filter, limit int64) (int64, error)
	// Change applies one action to some entries, each by compare-and-set in the state machine of [Change.Apply], and
	// records it in the audit log in the same transaction. The results are in the order of the ids. An error concerns the
	// whole call: nothing was changed, or that is not known.
	Change(ctx context.Context, c Change) ([]Result, error)
	// Revise gives an entry a new revision of its body, by compare-and-set and with a record in the audit log; earlier
	// revisions remain. The error wraps ErrNotFound, ErrConflict or ErrInvalid when nothing was changed.
	Revise(ctx context.Context, r Revision) (*Entry, error)
	// Import stores entries unchanged, with their state, all revisions of their bodies and new ids, unless their Key
	// exists: then the Outcome is Seen and the existing entry stays unchanged. One transaction, all or none.
	Import(ctx context.Context, by By, at time.Time, letters ...Exported) ([]Receipt, error)
	// Purge removes closed entries, and returns how many. Call it again while it returns Purge.Limit.
	Purge(ctx context.Context, p Purge) (int, error)
	// Audit returns audit records, newest first unless the page asks for the oldest first, and the cursor of the next
	// page.
	Audit(ctx context.Context, f AuditFilter, p Page) ([]AuditRecord, string, error)
	// Groups returns the causes, those with the most entries first.
	Groups(ctx context.Context, q GroupQuery) ([]Group, error)
	// Stats returns the numbers of a dashboard without scanning the entries.
	Stats(ctx context.Context, q StatsQuery) (Stats, error)
	// Recount rebuilds the statistics from all entries, after the tables were changed by hand.
	Recount(ctx context.Context) error
	// Ping reports whether the store can take a dead letter now.
	Ping(ctx context.Context) error
	// Close finishes pending work and closes the store. Later calls return ErrClosed. It may be called more than once.
	Close() error
}
