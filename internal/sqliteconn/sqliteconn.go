// Package sqliteconn opens connections to an SQLite file, with any driver for database/sql: each has the same statements run
// on it first, because drivers have no common way to say pragmas in a DSN, and waits for the lock where SQLite itself does not.
package sqliteconn

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Patience is how long a connection waits for the lock where SQLite does not heed busy_timeout.
const Patience = 10 * time.Second

// pause is between two attempts at a locked file.
const pause = 5 * time.Millisecond

// Connector opens connections with a driver, and runs statements on each before it is used. Make a pool of it with sql.OpenDB.
// It may be used by several goroutines at once.
type Connector struct {
	driver     driver.Driver
	dsn        string
	statements []string
}

var _ driver.Connector = (*Connector)(nil)

// New makes a connector. It opens nothing yet.
func New(d driver.Driver, dsn string, statements ...string) *Connector {
	return &Connector{driver: d, dsn: dsn, statements: statements}
}

// Driver returns the driver below.
func (c *Connector) Driver() driver.Driver { return c.driver }

// Connect opens a connection and runs the statements on it. While the file is locked it tries again for as long as Patience, or
// until ctx ends. Its errors name the statement, and never the DSN.
func (c *Connector) Connect(ctx context.Context) (driver.Conn, error) {
	var conn driver.Conn
	err := patiently(ctx, func() (err error) {
		conn, err = c.driver.Open(c.dsn) // a driver may run what the DSN sets, before there is a busy_timeout
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, statement := range c.statements {
		if err := patiently(ctx, func() error { return exec(ctx, conn, statement) }); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", statement, err), conn.Close())
		}
	}
	return conn, nil
}

// patiently tries again while the file is locked: SQLite does not ask busy_timeout when two connections change the journal
// mode of a new file, or recover it, at the same time.
func patiently(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for {
		err := try()
		if err == nil || !strings.Contains(err.Error(), "database is locked") { // every driver passes on SQLite's own words
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

func exec(ctx context.Context, conn driver.Conn, statement string) (err error) {
	if execer, ok := conn.(driver.ExecerContext); ok {
		if _, err := execer.ExecContext(ctx, statement, nil); !errors.Is(err, driver.ErrSkip) {
			return err
		}
	}
	stmt, err := conn.Prepare(statement)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stmt.Close()) }()
	_, err = stmt.Exec(nil) //nolint:staticcheck // SA1019: a driver without ExecerContext has no newer form
	return err
}
