package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"iter"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/huandu/go-sqlbuilder"
	"github.com/pressly/goose/v3"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/internal/sqliteconn"
)

// sqliteDrivers are the names under which the known SQLite drivers register themselves, and their import paths.
var sqliteDrivers = []knownDriver{
	{"sqlite", "modernc.org/sqlite"},
	{"sqlite3", "github.com/mattn/go-sqlite3"},
}

// sqliteConfig is what a sqlite URL says.
type sqliteConfig struct {
	path        string
	driver      string
	busyTimeout time.Duration
	synchronous string
	readers     int
}

// openSQLite opens a file with one connection that writes and a few that read. SQLite has one writer at a time anyway: a second
// connection of ours would only wait in its busy handler, which polls, instead of in our queue.
func openSQLite(ctx context.Context, u *url.URL) (*Store, error) {
	cfg, err := parseSQLite(u)
	if err != nil {
		return nil, err
	}
	drv, err := sqliteDriver(cfg.driver)
	if err != nil {
		return nil, err
	}
	s := &Store{dialect: sqlite{}}
	s.write, s.read = cfg.pools(drv)
	if cfg.path != ":memory:" {
		s.spoolDir = cfg.path + "-spool"
	}
	if err := s.start(ctx); err != nil {
		return nil, fmt.Errorf("sqlstore: open sqlite file %s: %w", cfg.path, err)
	}
	return s, nil
}

// pools makes the pools, which open nothing yet. A database in memory is one connection's: it has one pool.
func (c *sqliteConfig) pools(drv driver.Driver) (write, read *sql.DB) {
	memory := c.path == ":memory:"
	dsn := "file:" + (&url.URL{Path: filepath.ToSlash(c.path)}).EscapedPath() + "?_txlock=immediate"
	if memory {
		dsn = ":memory:?_txlock=immediate"
	}
	pragmas := []string{
		"PRAGMA busy_timeout=" + strconv.FormatInt(c.busyTimeout.Milliseconds(), 10),
		"PRAGMA synchronous=" + c.synchronous,
		"PRAGMA cache_size=-16000",
		"PRAGMA wal_autocheckpoint=4000", // small commits write the same pages again and again: copy them home less often
	}
	write = sql.OpenDB(sqliteconn.New(drv, dsn, append(slices.Clone(pragmas), "PRAGMA journal_mode=WAL")...))
	write.SetMaxOpenConns(1)
	write.SetConnMaxIdleTime(0)
	if memory {
		return write, write
	}
	read = sql.OpenDB(sqliteconn.New(drv, dsn, append(slices.Clone(pragmas), "PRAGMA query_only=1")...))
	read.SetMaxOpenConns(c.readers)
	read.SetMaxIdleConns(c.readers)
	return write, read
}

func parseSQLite(u *url.URL) (sqliteConfig, error) {
	cfg := sqliteConfig{busyTimeout: 5 * time.Second, synchronous: "FULL", readers: 4}
	raw, query := u.Opaque, u.RawQuery
	if raw == "" {
		raw = u.Host + u.Path
	} else if path, rest, found := strings.Cut(raw, "?"); found { // a path without a scheme is not split yet
		raw, query = path, rest
	}
	cfg.path = raw
	if cfg.path == "" {
		return cfg, errors.New("sqlstore: sqlite URL without a file: write sqlite:///var/lib/app/dead.db, or sqlite:dead.db")
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return cfg, fmt.Errorf("sqlstore: sqlite URL: parameters: %w", err)
	}
	return cfg, cfg.read(values)
}

func (c *sqliteConfig) read(values url.Values) error {
	var errs []error
	for name, all := range values {
		value := all[len(all)-1]
		var err error
		switch strings.TrimPrefix(name, "x-") {
		case "driver":
			c.driver = value
		case "busy_timeout":
			c.busyTimeout, err = time.ParseDuration(value)
			if err == nil && c.busyTimeout < 0 {
				err = errors.New("must not be negative")
			}
		case "synchronous":
			c.synchronous = strings.ToUpper(value)
			if c.synchronous != "FULL" && c.synchronous != "NORMAL" && c.synchronous != "EXTRA" {
				err = errors.New("must be full, extra or normal; normal may lose the last dead letters on a power loss")
			}
		case "readers":
			c.readers, err = strconv.Atoi(value)
			if err == nil && (c.readers < 1 || c.readers > 256) {
				err = errors.New("must be from 1 to 256")
			}
		default:
			err = errors.New("unknown; known are busy_timeout, driver, readers, synchronous, each also with x- before it")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sqlstore: sqlite URL: parameter %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// sqliteDriver finds the SQL driver that the program imports.
func sqliteDriver(name string) (driver.Driver, error) {
	name, err := findDriver(sqliteDrivers, name)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open(name, ":memory:") // opens nothing yet: it is the way to the registered driver
	if err != nil {
		return nil, fmt.Errorf("sqlstore: SQL driver %s: %w", name, err)
	}
	return db.Driver(), db.Close()
}

// sqlite is the dialect of SQLite 3.35 and later.
type sqlite struct{}

func (sqlite) flavor() sqlbuilder.Flavor { return sqlbuilder.SQLite }

func (sqlite) migrate(ctx context.Context, db *sql.DB) error {
	return migrateUnlocked(ctx, db, goose.DialectSQLite3, migrationsOf("sqlite"))
}

func (sqlite) ready(context.Context, *sql.DB) error { return nil }

func (sqlite) rebind(query string) string { return query }

func (sqlite) forUpdate() string { return "" } // _txlock=immediate: a transaction has the write lock from its start

func (sqlite) idIn(column string, ids []int64) iter.Seq2[string, []any] { return idInList(column, ids) }

func (sqlite) insertEntries(ctx context.Context, s *Store, tx *sql.Tx, rows [][]any) (map[dlq.Key]int64, error) {
	return insertReturning(ctx, s, tx, rows)
}

func (sqlite) insertRows(ctx context.Context, s *Store, tx *sql.Tx, table string, columns []string, rows [][]any) error {
	return insertValues(ctx, s, tx, table, columns, rows)
}

func (sqlite) lockTables([]string) []string { return nil } // see forUpdate

func (sqlite) durable(context.Context, *sql.Tx) error { return nil }

func (sqlite) maxStatement() int { return 4 << 20 }

func (sqlite) splitBody([]any) [][]any { return nil }

func (sqlite) keys() (table, id string) { return "dlq_entries", "id" }

func (sqlite) archivedProjection() string { return "CASE WHEN event_payload IS NULL THEN 0 ELSE 1 END" }

func (sqlite) splits() bool { return false }

func (sqlite) hasParts([]byte) bool { return false }

func (sqlite) after(column, op string, at, id func() string) string {
	return rowAfter(column, op, at, id)
}

func (sqlite) upsert(table string, columns, key, add, latest []string, rows int) string {
	return onConflict(table, columns, key, add, latest, rows, "max")
}

// sqliteTime sorts as text in the order of time, and is what SQLite's date functions read.
const sqliteTime = "2006-01-02 15:04:05.000000"

func (sqlite) time(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UTC().Format(sqliteTime)
}

func (sqlite) contains(column, parameter string) string {
	return column + " LIKE " + parameter + " ESCAPE '!'"
}

func (sqlite) containsArg(text string) any { return likePattern(text) }

func (sqlite) containsBytes(column, parameter string) string {
	return "instr(" + column + ", " + parameter + ") > 0"
}

// projection is 1 for JSON: the view makes text of the payload then. SQLite's JSON functions stop at a nesting of 1,000 in older
// versions, and one row that they cannot read fails a whole query.
func (sqlite) projection(payload []byte) any {
	if validJSON(payload, 500) {
		return 1
	}
	return 0
}

func (sqlite) archive() string { return "dlq_events_archive" }

func (sqlite) inTx(ctx context.Context, db *sql.DB, fn func(*sql.Tx) error) error {
	return runTx(ctx, db, nil, fn)
}

var _ dlq.Driver = driverFunc(nil)
