package driver

import (
	"context"
	"database/sql"
	"time"
)

// ArchiveStore is a [Store] that can restore purged entries from its archive.
type ArchiveStore interface {
	Store
	// Unarchive moves entries back from the archive, unchanged and with their ids, and records it in the audit log. It
	// returns the ids of the restored entries: those in the archive whose delivery has not been dead-lettered again
	// since.
	Unarchive(ctx context.Context, by By, at time.Time, ids ...int64) ([]int64, error)
}

// RecordStore is a [Store] with an audit log for events that change no entry.
type RecordStore interface {
	Store
	// Record appends all records or none.
	Record(ctx context.Context, records ...AuditRecord) error
}

// MonthStore is a [Store] that may have a table for each month.
type MonthStore interface {
	Store
	// PurgeMonths removes whole months of entries that Purge would remove one by one: months in which nearly all entries
	// are to be purged. It returns how many entries, and ignores Purge.Limit.
	PurgeMonths(ctx context.Context, p Purge) (int, error)
}

// TxStore is a [Store] that can store dead letters in a caller's transaction on the same database.
type TxStore interface {
	Store
	// PutTx is Put in tx: the letters are durable when tx commits. If it fails, tx is as before and still usable.
	PutTx(ctx context.Context, tx *sql.Tx, letters ...*Entry) ([]Receipt, error)
}

// As returns an optional interface of a store, or of a store that it wraps: wrappers have a method Unwrap() Store. Do
// not use a type assertion, which silently fails on a wrapped store.
func As[T any](s Store) (T, bool) {
	for {
		if found, ok := s.(T); ok {
			return found, true
		}
		wrapped, ok := s.(interface{ Unwrap() Store })
		if !ok {
			var none T
			return none, false
		}
		s = wrapped.Unwrap()
	}
}

// Clock is a [Store] with a clock that is common to all processes.
type Clock interface {
	Store
	// Now returns the store's time. It has no error: if the store does not answer, the call that needs the time fails
	// anyway.
	Now(ctx context.Context) time.Time
}

// Now returns the time for decisions that processes on one store share: leases, claims, expiry, and the times of
// changes. It is the store's, because the clocks of machines differ; if the store has none, it is the process's.
func Now(ctx context.Context, s Store) time.Time {
	if clock, ok := As[Clock](s); ok {
		return clock.Now(ctx)
	}
	return time.Now()
}
