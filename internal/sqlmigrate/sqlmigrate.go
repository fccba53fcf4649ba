// Package sqlmigrate applies embedded goose migrations so that any number of processes may start at once.
package sqlmigrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"sync"
	"time"

	"github.com/pressly/goose/v3"
)

// Up applies what is missing of the migrations in dir. dialect is postgres, mysql or sqlite. Processes take a lock of the
// database in turn, and all but the first find nothing to do. table is goose's record of what has been applied; a name of
// its own keeps one part's migrations apart from the application's and from other parts' in the same database.
//
// On SQLite, which has no such lock, and with a pool of one connection, which cannot hold it beside goose, each migration
// must do nothing the second time (IF NOT EXISTS).
func Up(ctx context.Context, db *sql.DB, dialect string, dir fs.FS, table string) error {
	var (
		kind goose.Dialect
		lock locker
	)
	switch dialect {
	case "postgres":
		kind, lock = goose.DialectPostgres, postgresLock(table)
	case "mysql":
		kind, lock = goose.DialectMySQL, mysqlLock(table)
	case "sqlite":
		kind = goose.DialectSQLite3
	default:
		return fmt.Errorf("no migrations for %q", dialect)
	}
	provider, err := goose.NewProvider(kind, db, dir, goose.WithTableName(table), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	if lock == nil || db.Stats().MaxOpenConnections == 1 {
		return upUnlocked(ctx, provider)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // it goes back to the pool
	if err := lock.lock(ctx, conn); err != nil {
		return err
	}
	_, err = provider.Up(ctx)
	return errors.Join(err, lock.unlock(context.WithoutCancel(ctx), conn))
}

// locker takes a lock of the database for a connection, whose end releases it too. goose's own session lockers (v3.29.0)
// come too late: its Up first looks for pending migrations without them, and makes its table there. On MySQL, where that
// takes two steps, another process finds the table without its first row and fails; on PostgreSQL it waits a second.
type locker interface {
	lock(ctx context.Context, conn *sql.Conn) error
	unlock(ctx context.Context, conn *sql.Conn) error
}

// postgresLock is an advisory lock.
type postgresLock string

func (l postgresLock) key() int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(l)) // a hash takes everything
	return int64(h.Sum64())   //nolint:gosec // G115: any number will do
}

func (l postgresLock) lock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock($1)", l.key())
	return err
}

func (l postgresLock) unlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "SELECT pg_advisory_unlock($1)", l.key())
	return err
}

// mysqlLock is a lock whose name is the server's, not the database's.
type mysqlLock string

// mysqlLockName is the lock's name in SQL: 64 characters, as many as one may have. MySQL 9.6 took MD5 and SHA1 away.
const mysqlLockName = "SHA2(CONCAT(?, DATABASE()), 256)"

// mysqlWait is how long a process waits for the one that migrates, in seconds.
const mysqlWait = 300

func (l mysqlLock) lock(ctx context.Context, conn *sql.Conn) error {
	var got sql.NullInt64
	err := conn.QueryRowContext(ctx, "SELECT GET_LOCK("+mysqlLockName+", ?)", string(l), mysqlWait).Scan(&got)
	if err == nil && got.Int64 != 1 {
		err = errors.New("another process has held the migration lock for five minutes")
	}
	return err
}

func (l mysqlLock) unlock(ctx context.Context, conn *sql.Conn) error {
	_, err := conn.ExecContext(ctx, "DO RELEASE_LOCK("+mysqlLockName+")", string(l))
	return err
}

// unlocked keeps this process's own migrations apart; other processes are met with retries.
var unlocked sync.Mutex

// upUnlocked asks again: two processes that start at once can both find the schema missing, and one of them then fails
// with "busy" or "exists already".
func upUnlocked(ctx context.Context, provider *goose.Provider) error {
	unlocked.Lock()
	defer unlocked.Unlock()
	for attempt := 1; ; attempt++ {
		_, err := provider.Up(ctx)
		if err == nil || attempt == 10 {
			return err
		}
		timer := time.NewTimer(time.Duration(attempt) * 20 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(err, context.Cause(ctx))
		}
	}
}
