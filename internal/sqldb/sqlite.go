package sqldb

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/internal/wait"
)

// sqlitePragmas make what was committed survive a loss of power (synchronous), readers and the writer independent
// (journal_mode), and processes that share the file wait for each other (busy_timeout, in ms).
var sqlitePragmas = []string{
	"PRAGMA busy_timeout = 10000",
	"PRAGMA journal_mode = WAL",
	"PRAGMA synchronous = FULL",
}

// pragmas leaves out what the URL sets itself: _pragma=synchronous(normal), in the form of modernc.org/sqlite.
func pragmas(native url.Values) (list []string) {
	for _, pragma := range sqlitePragmas {
		name := strings.Fields(pragma)[1]
		if !slices.ContainsFunc(native["_pragma"], func(set string) bool { return strings.HasPrefix(set, name) }) {
			list = append(list, pragma)
		}
	}
	return list
}

func sqliteDSN(path string, params url.Values) string {
	if path == memory {
		return memory + "?" + params.Encode()
	}
	return "file:" + (&url.URL{Path: filepath.ToSlash(path)}).EscapedPath() + "?" + params.Encode()
}

// Patience is how long a connection waits for the lock where SQLite does not heed busy_timeout.
const Patience = 10 * time.Second

// pause is between two attempts at a locked file.
const pause = 5 * time.Millisecond

// Connector opens connections to a SQLite file with any driver, and runs statements on each before it is used, because
// the drivers have no common way to say pragmas in a DSN. It waits for the lock where SQLite itself does not. Make a
// pool of it with sql.OpenDB. It may be used by several goroutines at once.
type Connector struct {
	// File is made, with no rights for others than its owner, unless it is there. MustExist makes that an error
	// instead.
	File      string
	MustExist bool

	driver     driver.Driver
	dsn        string
	statements []string
}

var _ driver.Connector = (*Connector)(nil)

// NewConnector makes a connector. It opens nothing yet.
func NewConnector(d driver.Driver, dsn string, statements ...string) *Connector {
	return &Connector{driver: d, dsn: dsn, statements: statements}
}

// Driver returns the driver below.
func (c *Connector) Driver() driver.Driver { return c.driver }

// Connect opens a connection and runs the statements on it. While the file is locked it tries again for as long as
// Patience, or until ctx ends. Its errors name the statement, and never the DSN.
func (c *Connector) Connect(ctx context.Context) (driver.Conn, error) {
	if err := c.makeFile(); err != nil {
		return nil, err
	}
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

// making keeps connections away from a file until it is made: a process loses all its locks on a file when it closes
// any descriptor of it. For the same reason a file that is there is not opened.
var making sync.Mutex

// makeFile makes the file before SQLite does, which would let everybody read it. SQLite gives its other files the same
// rights.
func (c *Connector) makeFile() error {
	if c.File == "" {
		return nil
	}
	making.Lock()
	defer making.Unlock()
	if _, err := os.Stat(c.File); err == nil || c.MustExist {
		return err
	}
	f, err := os.OpenFile(c.File, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil // another process was faster
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// patiently tries again while the file is locked: SQLite does not ask busy_timeout when two connections change the
// journal mode of a new file, or recover it, at the same time.
func patiently(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	for {
		err := try()
		if err == nil || !SQLite.Locked(err) || wait.For(ctx, pause) != nil {
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
