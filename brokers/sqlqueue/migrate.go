package sqlqueue

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/pressly/goose/v3"
)

//go:embed migrations
var migrations embed.FS

// schemaTable is goose's record of what has been applied. It has a name of its own, so that it meets neither the
// application's migrations nor those of a dead letter store in the same database.
const schemaTable = "redrive_queue_schema"

// Migrate makes and upgrades the queue's tables in db. It may run in any number of processes at once: they take a lock
// of the database in turn, and all but the first find nothing to do. [New] and the driver call it, unless migrate=false.
func Migrate(ctx context.Context, db *sql.DB, name Dialect) error {
	provider, err := migrator(db, name)
	if err != nil {
		return fmt.Errorf("sqlqueue: migrate: %w", err)
	}
	if name != SQLite {
		_, err = provider.Up(ctx)
	} else {
		err = migrateSQLite(ctx, provider)
	}
	if err != nil {
		return fmt.Errorf("sqlqueue: migrate: %w", err)
	}
	return nil
}

func migrator(db *sql.DB, name Dialect) (*goose.Provider, error) {
	if _, err := dialectOf(name); err != nil {
		return nil, err
	}
	dir, err := fs.Sub(migrations, "migrations/"+string(name))
	if err != nil {
		return nil, err
	}
	opts := []goose.ProviderOption{goose.WithTableName(schemaTable), goose.WithDisableGlobalRegistry(true)}
	kind := map[Dialect]goose.Dialect{PostgreSQL: goose.DialectPostgres, MySQL: goose.DialectMySQL, SQLite: goose.DialectSQLite3}[name]
	if name != SQLite {
		opts = append(opts, goose.WithSessionLocker(sessionLock(name)))
	}
	return goose.NewProvider(kind, db, dir, opts...)
}

// sessionLock waits in the database's own queue for an advisory lock, which the end of the connection releases. goose's
// lockers ask again every few seconds instead.
type sessionLock Dialect

// lockKey is an arbitrary constant; it only has to be the same in every process.
const lockKey = 0x7265647271 // "redrq"

func (l sessionLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	if Dialect(l) == PostgreSQL {
		_, err := conn.ExecContext(ctx, "SELECT pg_advisory_lock($1)", int64(lockKey))
		return err
	}
	// The lock's name is the server's, not the database's.
	var got sql.NullInt64
	err := conn.QueryRowContext(ctx, "SELECT GET_LOCK(MD5(CONCAT('redrive_queue ', DATABASE())), 300)").Scan(&got)
	if err == nil && got.Int64 != 1 {
		err = errors.New("another process has held the migration lock for five minutes")
	}
	return err
}

func (l sessionLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	if Dialect(l) == PostgreSQL {
		_, err := conn.ExecContext(ctx, "SELECT pg_advisory_unlock($1)", int64(lockKey))
		return err
	}
	_, err := conn.ExecContext(ctx, "DO RELEASE_LOCK(MD5(CONCAT('redrive_queue ', DATABASE())))")
	return err
}

// sqliteMigrations keeps this process's own migrations apart; other processes are met with retries.
var sqliteMigrations sync.Mutex

// migrateSQLite has no advisory lock to take. Two processes that start at once can both find the schema missing; one
// then fails with "busy" or "exists already". Every statement does nothing the second time, so asking again is safe.
func migrateSQLite(ctx context.Context, provider *goose.Provider) error {
	sqliteMigrations.Lock()
	defer sqliteMigrations.Unlock()
	var err error
	for attempt := range 10 {
		if _, err = provider.Up(ctx); err == nil {
			return nil
		}
		if waitErr := wait(ctx, time.Duration(attempt+1)*20*time.Millisecond); waitErr != nil {
			return errors.Join(err, waitErr)
		}
	}
	return err
}

// wait pauses for d or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
