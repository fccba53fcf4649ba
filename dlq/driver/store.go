package driver

import (
	"context"
	"time"
)

// Store keeps dead letters. Implementations are safe for concurrent use by many goroutines and many processes, and pass
// the suite in dlq/dlqtest. Their errors wrap [ErrNotFound], [ErrConflict] and [ErrInvalid] where these are meant; any
// other error says that the store could not be reached or did not answer, and that the call may be made again.
//
// What a store may offer besides is a separate interface, found by [As]: a store may be wrapped.
type Store interface {
	// Put stores dead letters and returns when they are durable, with one receipt for each, in their order. It is
	// idempotent: an entry whose Key is there is not stored again, and one that says RedriveOf comes back to its entry
	// (see [Entry.Die]). On an error none, some or all may have been stored; the call is to be repeated. Concurrent
	// calls may be joined into one write. The entries are not changed and not kept.
	Put(ctx context.Context, letters ...*Entry) ([]Receipt, error)
	// Get returns an entry with the body that a redrive would send. The error wraps ErrNotFound if it does not exist.
	Get(ctx context.Context, id int64) (*Entry, error)
	// Body returns one revision of an entry's body. The error wraps ErrNotFound if it does not exist.
	Body(ctx context.Context, id int64, revision int) (*Body, error)
	// List returns a page of the entries that the filter picks.
	List(ctx context.Context, f Filter, p Page) (Listing, error)
	// Count returns how many entries the filter picks, but counts no further than limit; 0 is not a limit.
	Count(ctx context.Context, f Filter, limit int64) (int64, error)
	// Change does one action on some entries, each by compare-and-set in the state machine of [Change.Apply], and
	// records it in the audit log in the same transaction. The results are in the order of the ids. The error is only
	// about the call as a whole: then nothing was changed, or it is not known.
	Change(ctx context.Context, c Change) ([]Result, error)
	// Revise gives an entry a new revision of its body, by compare-and-set and with a record in the audit log; the
	// revisions before stay. The error wraps ErrNotFound, ErrConflict or ErrInvalid when nothing was changed.
	Revise(ctx context.Context, r Revision) (*Entry, error)
	// Import stores entries as they are, with their state, all revisions of their bodies and new ids, when no entry has
	// their Key; Outcome Seen says that there is one, which stays as it is. One transaction, all or none.
	Import(ctx context.Context, by By, at time.Time, letters ...Exported) ([]Receipt, error)
	// Purge removes closed entries, and returns how many. Call it again while it returns Purge.Limit.
	Purge(ctx context.Context, p Purge) (int, error)
	// Audit returns audit records, newest first unless the page asks for the oldest first, and the cursor of the next
	// page.
	Audit(ctx context.Context, f AuditFilter, p Page) ([]AuditRecord, string, error)
	// Groups returns the causes, those with the most entries first.
	Groups(ctx context.Context, q GroupQuery) ([]Group, error)
	// Stats returns the numbers of a dashboard without reading the entries.
	Stats(ctx context.Context, q StatsQuery) (Stats, error)
	// Recount makes the kept statistics anew from the entries, for after somebody has changed them by hand. It reads
	// all.
	Recount(ctx context.Context) error
	// Ping reports whether the store can take a dead letter now.
	Ping(ctx context.Context) error
	// Close finishes what was begun and closes the store. Later calls return ErrClosed. Closing twice is fine.
	Close() error
}
