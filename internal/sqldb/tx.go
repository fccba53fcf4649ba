package sqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redrive-go/redrive/internal/wait"
)

// Beginner is a pool, or a [Patient] one.
type Beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// Patient is a pool for handlers' transactions, which wait for other writers of a SQLite file until ctx ends: after
// busy_timeout, an attempt would have failed before its handler did anything.
type Patient struct{ *sql.DB }

// BeginTx implements Beginner.
func (p Patient) BeginTx(ctx context.Context, opts *sql.TxOptions) (tx *sql.Tx, err error) {
	err = Patiently(ctx, func() error {
		tx, err = p.DB.BeginTx(ctx, opts)
		return err
	})
	return tx, err
}

// InTx runs fn in a transaction, which is committed when fn returns nil and rolled back otherwise, even if fn panics.
func InTx(ctx context.Context, db Beginner, opts *sql.TxOptions, fn func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// attempts is how often a transaction with conflicts is run.
const attempts = 10

// Retry is InTx, repeated while the transaction fails only because of another one, or again reports true for its error.
func (d Dialect) Retry(
	ctx context.Context, db *sql.DB, opts *sql.TxOptions, again func(error) bool, fn func(*sql.Tx) error,
) error {
	for attempt := 1; ; attempt++ {
		err := InTx(ctx, db, opts, fn)
		if err == nil || attempt == attempts || !d.Conflict(err) && !again(err) {
			return err
		}
		if ended := wait.For(ctx, rand.N(time.Duration(attempt)*5*time.Millisecond)); ended != nil { //nolint:gosec // G404: jitter
			return errors.Join(ended, err)
		}
	}
}

// Row is one row of a result.
type Row interface{ Scan(dest ...any) error }

// Each reads and closes a result: Each(db.QueryContext(ctx, query))(read) calls read for each row. It stops at an error
// of the query or of read.
func Each(rows *sql.Rows, err error) func(read func(Row) error) error {
	return func(read func(Row) error) error {
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := read(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	}
}

// All is [Each] for a list: All[T](db.QueryContext(ctx, query))(scan). Without rows the list is nil.
func All[T any](rows *sql.Rows, err error) func(scan func(Row, *T) error) ([]T, error) {
	return func(scan func(Row, *T) error) ([]T, error) {
		var list []T
		err := Each(rows, err)(func(row Row) error {
			if len(list) == cap(list) {
				// append would copy a page of large rows many more times
				list = slices.Grow(list, max(8, len(list)))
			}
			list = list[:len(list)+1]
			return scan(row, &list[len(list)-1])
		})
		if err != nil {
			return nil, err
		}
		return list, nil
	}
}

// Column is [All] for rows of one column.
func Column[T any](rows *sql.Rows, err error) ([]T, error) {
	return All[T](rows, err)(func(row Row, value *T) error { return row.Scan(value) })
}

// Changed is how many rows a statement changed: Changed(db.ExecContext(ctx, query)).
func Changed(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// WithLock runs fn while this process holds the database's lock of that name. It waits for the lock: on PostgreSQL
// until ctx ends, on MySQL for five minutes. fn must not use the connection that holds the lock. On SQLite fn runs
// without one.
//
// goose's session lockers (v3.29.0) lock too late for migrations: Up first looks for pending ones without the lock, and
// creates its table there. On MySQL, where that takes two steps, another process finds the table without its first row
// and fails; on PostgreSQL it waits a second.
func (d Dialect) WithLock(ctx context.Context, db *sql.DB, name string, fn func() error) error {
	switch d {
	case PostgreSQL:
		return postgresLocked(ctx, db, name, fn)
	case MySQL:
		return mysqlLocked(ctx, db, name, fn)
	default:
		return fn()
	}
}

// postgresLocked takes a transaction-level advisory lock, not a session-level one: behind a pooler each statement
// outside of a transaction may run in another session, and the lock would never be released.
func postgresLocked(ctx context.Context, db *sql.DB, name string, fn func() error) error {
	return InTx(ctx, db, nil, func(tx *sql.Tx) error {
		h := fnv.New64a()
		_, _ = h.Write([]byte(name)) // a hash never fails
		key := int64(h.Sum64())      //nolint:gosec // G115: any number will do
		for _, statement := range []string{
			"SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('idle_in_transaction_session_timeout', " +
				"'lock_timeout', 'statement_timeout', 'transaction_timeout')",
			fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", key),
		} {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return fn()
	})
}

// mysqlLockName is the lock's name in SQL. Locks belong to the server, not the database, and a name has at most 64
// characters. MySQL 9.6 removed MD5 and SHA1.
const mysqlLockName = "SHA2(CONCAT(?, DATABASE()), 256)"

// mysqlWait is how long to wait for the lock of another process, in seconds.
const mysqlWait = 300

func mysqlLocked(ctx context.Context, db *sql.DB, name string, fn func() error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // closes it: its timeouts were changed
		_ = conn.Close()
	}()
	// It is idle while fn runs, and the lock would end with its session. See mysqlIdle for the comments.
	if _, err := conn.ExecContext(ctx, "SET SESSION wait_timeout = 86400 /*M!100300 , SESSION max_statement_time = 0 */"+
		" /*!80000 , SESSION max_execution_time = 0 */"); err != nil {
		return err
	}
	var got sql.NullInt64
	err = conn.QueryRowContext(ctx, "SELECT GET_LOCK("+mysqlLockName+", ?)", name, mysqlWait).Scan(&got)
	if err == nil && got.Int64 != 1 {
		err = errors.New("another process has held the migration lock for five minutes")
	}
	if err != nil {
		return err
	}
	err = fn()
	_, released := conn.ExecContext(context.WithoutCancel(ctx), "DO RELEASE_LOCK("+mysqlLockName+")", name)
	return errors.Join(err, released)
}
