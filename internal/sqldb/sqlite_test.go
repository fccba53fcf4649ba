package sqldb_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/redrive-go/redrive/internal/sqldb"
)

func sqlite(t *testing.T) driver.Driver {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	require.NoError(t, err)
	require.NoError(t, db.Close())
	return db.Driver()
}

// Processes that start together all turn the journal of a new file into a write-ahead log: SQLite lets those who meet
// fail at once, without a wait for busy_timeout, whether a statement of ours or the driver itself, from its DSN, comes
// to that point.
func TestConnector_FileOpenedTogether(t *testing.T) {
	t.Parallel()
	drv := sqlite(t)
	for name, tt := range map[string]struct {
		parameters string
		statements []string
	}{
		"Statements": {"", []string{"PRAGMA busy_timeout = 5000", "PRAGMA synchronous = off", "PRAGMA journal_mode = WAL"}},
		"DSN":        {"?_pragma=journal_mode(wal)&_pragma=synchronous(off)", []string{"PRAGMA busy_timeout = 5000"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 40 {
				c := sqldb.NewConnector(drv, "file:"+filepath.Join(t.TempDir(), "a.db")+tt.parameters, tt.statements...)
				var opening sync.WaitGroup
				start := make(chan struct{})
				for range 8 {
					opening.Go(func() {
						<-start
						conn, err := c.Connect(t.Context())
						if assert.NoError(t, err) {
							assert.NoError(t, conn.Close())
						}
					})
				}
				close(start)
				opening.Wait()
			}
		})
	}
}

// sqliteError is shaped like the errors of modernc.org/sqlite.
type sqliteError int

func (e sqliteError) Error() string { return "code " + strconv.Itoa(int(e)) }

func (e sqliteError) Code() int { return int(e) | 1<<8 } // an extended code

// lockedUntil is a driver whose file is locked for a while: for Open, or for what is run on a connection.
type lockedUntil struct {
	driver.Driver
	open, exec time.Time
	refuses    error
	closed     int
}

func (d *lockedUntil) Open(dsn string) (driver.Conn, error) {
	if time.Now().Before(d.open) {
		return nil, d.refuses
	}
	conn, err := d.Driver.Open(dsn)
	return &lockedConn{Conn: conn, driver: d}, err
}

type lockedConn struct {
	driver.Conn
	driver *lockedUntil
}

func (c *lockedConn) Close() error {
	c.driver.closed++
	return c.Conn.Close()
}

func (c *lockedConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if time.Now().Before(c.driver.exec) {
		return nil, c.driver.refuses
	}
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func TestConnector_WaitsForTheLockUntilTheDeadline(t *testing.T) {
	drv := sqlite(t)
	locked, readOnly := sqliteError(5), sqliteError(8)
	for name, tt := range map[string]struct {
		open, exec, gives time.Duration // how long the file is locked, and how long the caller gives
		refuses, want     error
		after             time.Duration
	}{
		"Open is locked for a while":         {open: 9 * time.Second, refuses: locked, after: 9 * time.Second},
		"a statement is locked for a while":  {exec: 9 * time.Second, refuses: locked, after: 9 * time.Second},
		"Open is locked for too long":        {open: time.Hour, refuses: locked, want: locked, after: sqldb.Patience},
		"a statement is locked for too long": {exec: time.Hour, refuses: locked, want: locked, after: sqldb.Patience},
		"the caller has no time": {
			exec: time.Hour, gives: time.Second, refuses: locked, want: locked,
			after: time.Second,
		},
		"Open fails for another reason":        {open: time.Hour, refuses: readOnly, want: readOnly},
		"a statement fails for another reason": {exec: time.Hour, refuses: readOnly, want: readOnly},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, began := t.Context(), time.Now()
				if tt.gives > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.gives)
					defer cancel()
				}
				d := &lockedUntil{Driver: drv, open: began.Add(tt.open), exec: began.Add(tt.exec), refuses: tt.refuses}
				conn, err := sqldb.NewConnector(d, ":memory:", "PRAGMA busy_timeout = 5000").Connect(ctx)
				require.ErrorIs(t, err, tt.want)
				require.Equal(t, tt.after, time.Since(began))
				if tt.want == nil {
					require.NoError(t, conn.Close())
				}
				if tt.exec > 0 {
					require.Equal(t, 1, d.closed, "a connection that is of no use is closed")
				}
			})
		})
	}
}

// bare hides what a driver may have beyond the least that database/sql asks for.
type bare struct{ driver.Driver }

func (d bare) Open(dsn string) (driver.Conn, error) {
	conn, err := d.Driver.Open(dsn)
	return struct{ driver.Conn }{conn}, err
}

func TestConnector_PreparesEachConnectionOfAnyDriver(t *testing.T) {
	t.Parallel()
	for name, drv := range map[string]driver.Driver{
		"modernc":                          sqlite(t),
		"with the least that a driver has": bare{sqlite(t)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := sql.OpenDB(sqldb.NewConnector(drv, "file:"+filepath.Join(t.TempDir(), "a.db"), "PRAGMA busy_timeout = 1234",
				"PRAGMA query_only = 1"))
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			for range 3 {
				conn, err := db.Conn(t.Context()) // each is kept, so that the next is another
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, conn.Close()) })
				var patience, readOnly int
				require.NoError(t, conn.QueryRowContext(t.Context(), "PRAGMA busy_timeout").Scan(&patience))
				require.NoError(t, conn.QueryRowContext(t.Context(), "PRAGMA query_only").Scan(&readOnly))
				require.Equal(t, []int{1234, 1}, []int{patience, readOnly})
			}
		})
	}
}

func TestConnector_ErrorNamesTheStatement(t *testing.T) {
	t.Parallel()
	_, err := sqldb.NewConnector(sqlite(t), ":memory:", "PRAGMA busy_timeout = 1", "no statement").Connect(t.Context())
	require.ErrorContains(t, err, "no statement: ")
}

// SQLite keeps writing to a file that has no name any more, or another one, and reports success.
func TestConnector_FileIsMovedWhileItIsOpen(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(file string) error{
		"deleted": os.Remove,
		"moved":   func(file string) error { return os.Rename(file, file+".old") },
		"replaced": func(file string) error {
			return errors.Join(os.WriteFile(file+".new", nil, 0o600), os.Rename(file+".new", file))
		},
	} {
		for kind, drv := range map[string]driver.Driver{"modernc": sqlite(t), "the least": bare{sqlite(t)}} {
			t.Run(name+", "+kind, func(t *testing.T) {
				t.Parallel()
				file := filepath.Join(t.TempDir(), "a.db")
				c := sqldb.NewConnector(drv, "file:"+file, "PRAGMA journal_mode = WAL")
				c.File = file
				db := sql.OpenDB(c)
				t.Cleanup(func() { require.NoError(t, db.Close()) })
				write := func() error {
					return sqldb.InTx(t.Context(), db, nil, func(tx *sql.Tx) error {
						_, err := tx.ExecContext(t.Context(), "CREATE TABLE IF NOT EXISTS a (b)")
						return err
					})
				}
				require.NoError(t, write())
				require.NoError(t, write())
				require.NoError(t, take(file))
				require.ErrorContains(t, write(), file+" was deleted, moved or replaced while it was in use")
				require.ErrorContains(t, db.PingContext(t.Context()), "move it back")
				if name == "moved" {
					again := sqldb.NewConnector(drv, "file:"+file)
					again.File = file
					_, err := again.Connect(t.Context())
					require.ErrorContains(t, err, file+"-wal, which belongs to it, is there", "another process would delete it")
					require.NoError(t, os.Rename(file+".old", file))
					require.NoError(t, write())
				}
			})
		}
	}
}
