package driver

import (
	"context"
	"database/sql"
	"time"
)

// ArchiveStore is a [Store] that can bring back what it has purged into its archive.
type ArchiveStore interface {
	Store
	// Unarchive moves entries from the archive back, as they were, with their ids, and records it in the audit log. It
	// returns the ids of those that are back. Left out are those that are not in the archive, and those of a delivery
	// that has been dead-lettered again since.
	Unarchive(ctx context.Context, by By, at time.Time, ids ...int64) ([]int64, error)
}

// RecordStore is a [Store] in whose audit log something may be recorded that changes no entry.
type RecordStore interface {
	Store
	// Record appends to the audit log, all records or none.
	Record(ctx context.Context, records ...AuditRecord) error
}

// MonthStore is a [Store] that may have a table for each month.
type MonthStore interface {
	Store
	// PurgeMonths removes, a month at a time, what Purge would remove entry by entry: months whose entries are to be
	// purged, all but a few. It returns how many entries, and ignores Purge.Limit.
	PurgeMonths(ctx context.Context, p Purge) (int, error)
}

// TxStore is a [Store] that can put dead letters into a transaction of the caller's, on the same database.
type TxStore interface {
	Store
	// PutTx is Put in tx: the letters are there when tx commits, and durable. When it fails, tx is as it was before and
	// can go on.
	PutTx(ctx context.Context, tx *sql.Tx, letters ...*Entry) ([]Receipt, error)
}

// As finds what a store offers besides [Store], in it or in what it wraps: a wrapper has a method Unwrap() Store. It is
// the only way to ask, for an assertion on a store that is wrapped fails without a sign.
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
