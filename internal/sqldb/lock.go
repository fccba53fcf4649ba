package sqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"hash/fnv"
)

// WithLock runs fn while this process has the database's lock of a name, for which it waits: on PostgreSQL until ctx
// ends, on MySQL for five minutes. fn uses other connections of the pool than the one that holds the lock. On SQLite it
// runs fn without one.
//
// goose's own session lockers (v3.29.0) come too late for migrations: its Up first looks for pending ones without them,
// and makes its table there. On MySQL, where that takes two steps, another process finds the table without its first
// row and fails; on PostgreSQL it waits a second.
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

// postgresLocked takes an advisory lock of a transaction, not of a session: a pooler gives each statement outside of a
// transaction another session, and the lock would never be released.
func postgresLocked(ctx context.Context, db *sql.DB, name string, fn func() error) error {
	return InTx(ctx, db, nil, func(tx *sql.Tx) error {
		h := fnv.New64a()
		_, _ = h.Write([]byte(name)) // a hash takes everything
		key := int64(h.Sum64())      //nolint:gosec // G115: any number will do
		for _, statement := range []string{
			"SET LOCAL idle_in_transaction_session_timeout = 0",
			fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", key),
		} {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return fn()
	})
}

// mysqlLockName is the lock's name in SQL, which is the server's and not the database's: 64 characters, as many as one
// may have. MySQL 9.6 took MD5 and SHA1 away.
const mysqlLockName = "SHA2(CONCAT(?, DATABASE()), 256)"

// mysqlWait is how long a process waits for the one that has the lock, in seconds.
const mysqlWait = 300

func mysqlLocked(ctx context.Context, db *sql.DB, name string, fn func() error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // it is closed: its bound is another
		_ = conn.Close()
	}()
	// It does nothing while fn runs, and the lock would end with it.
	if _, err := conn.ExecContext(ctx, "SET SESSION wait_timeout = 86400"); err != nil {
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
