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

// sqlitePragmas make commits survive a power failure (synchronous), let readers work while the writer does
// (journal_mode), and make processes that share the file wait for each other (busy_timeout, in ms).
var sqlitePragmas = []string{
	"PRAGMA busy_timeout = 10000",
	"PRAGMA journal_mode = WAL",
	"PRAGMA synchronous = FULL",
}

// pragmas omits those that the URL sets itself: _pragma=synchronous(normal), in the form of modernc.org/sqlite.
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

// Patience is how long to wait for a lock where SQLite ignores busy_timeout.
const Patience = 10 * time.Second

// pause is the time between two attempts at a locked file.
const pause = 5 * time.Millisecond

// Connector opens connections to a SQLite file with any driver, and runs statements on each before it is used, because
// the drivers have no common syntax for pragmas in a DSN. It waits for locks where SQLite itself does not. Make a pool
// of it with sql.OpenDB. It is safe for concurrent use.
type Connector struct {
	// File is created if it is missing, readable only by its owner. With MustExist a missing file is an error instead.
	// Once opened, it is never created again, and no other file is opened under its name.
	File      string
	MustExist bool

	driver     driver.Driver
	dsn        string
	statements []string
	opened     os.FileInfo // File as it was first opened; guarded by making
}

var _ driver.Connector = (*Connector)(nil)

// NewConnector makes a connector without opening anything yet.
func NewConnector(d driver.Driver, dsn string, statements ...string) *Connector {
	return &Connector{driver: d, dsn: dsn, statements: statements}
}

// Driver returns the underlying driver.
func (c *Connector) Driver() driver.Driver { return c.driver }

// Connect opens a connection and runs the statements on it. While the file is locked it tries again, for up to Patience
// or until ctx ends. Its errors name the statement, but never the DSN.
func (c *Connector) Connect(ctx context.Context) (driver.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	opened, err := c.openFile()
	if err != nil {
		return nil, err
	}
	var conn driver.Conn
	err = Patiently(ctx, func() (err error) {
		conn, err = c.driver.Open(c.dsn) // a driver may run what the DSN sets, before there is a busy_timeout
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, statement := range c.statements {
		if err := Patiently(ctx, func() error { return exec(ctx, conn, statement) }); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", statement, err), conn.Close())
		}
	}
	if opened == nil {
		return conn, nil
	}
	guarded := &fileConn{Conn: conn, file: c.File, opened: opened}
	if all, ok := conn.(abilities); ok {
		return struct {
			*fileConn
			abilities
		}{guarded, all}, nil
	}
	return guarded, nil
}

// making blocks connections to a file until it has been created: a process loses all its locks on a file when it closes
// any descriptor of it. For the same reason an existing file is not opened.
var making sync.Mutex

// openFile returns the file of the connections, nil for a database without one.
func (c *Connector) openFile() (os.FileInfo, error) {
	if c.File == "" {
		return nil, nil //nolint:nilnil // there is no file, which is not an error
	}
	making.Lock()
	defer making.Unlock()
	if c.opened != nil {
		if !isStill(c.File, c.opened) {
			return nil, fmt.Errorf("%s was deleted, moved or replaced while it was in use: move it back, or restart this "+
				"process", c.File)
		}
		return c.opened, nil
	}
	err := c.makeFile()
	if err == nil {
		c.opened, err = os.Stat(c.File)
	}
	return c.opened, err
}

// makeFile creates the file, because SQLite would make it world-readable. SQLite gives its other files the same
// permissions. A write-ahead log without its file has the last commits, and SQLite would delete it.
func (c *Connector) makeFile() error {
	if _, err := os.Stat(c.File); err == nil || c.MustExist {
		return err
	}
	if log, err := os.Stat(c.File + "-wal"); err == nil && log.Size() > 0 {
		return fmt.Errorf("%s is missing, and %s-wal, which belongs to it, is there: move it back, or delete both", c.File,
			c.File)
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

func isStill(file string, opened os.FileInfo) bool {
	now, err := os.Stat(file)
	return err == nil && os.SameFile(now, opened)
}

// fileConn is a connection to a file that may be deleted, moved or replaced while it is open. SQLite would keep writing
// to it, and report success, until the last process that has it open ends: then everything written since would be lost.
// Such a connection is closed when it is next taken from its pool, and the connector refuses to make another.
type fileConn struct {
	driver.Conn

	file   string
	opened os.FileInfo
}

// ResetSession implements driver.SessionResetter.
func (c *fileConn) ResetSession(ctx context.Context) error {
	if !isStill(c.file, c.opened) {
		return driver.ErrBadConn
	}
	if resetter, ok := c.Conn.(driver.SessionResetter); ok {
		return resetter.ResetSession(ctx)
	}
	return nil
}

// IsValid implements driver.Validator.
func (c *fileConn) IsValid() bool {
	validator, ok := c.Conn.(driver.Validator)
	return !ok || validator.IsValid()
}

// abilities are what a SQLite driver usually has beyond driver.Conn; database/sql does without them.
type abilities interface {
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
}

// Patiently tries again while a SQLite file is locked, until ctx ends. SQLite ignores busy_timeout when two connections
// change the journal mode of a new file, or recover it, at the same time, and its queue of writers is not fair.
func Patiently(ctx context.Context, try func() error) error {
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
