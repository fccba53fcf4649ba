package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/redrive-go/redrive/internal/sqldb"
)

// Dialect is the kind of database behind a *sql.DB.
type Dialect = sqldb.Dialect

// The databases that [New] supports.
const (
	PostgreSQL = sqldb.PostgreSQL // 12 and later, through pgx
	MySQL      = sqldb.MySQL      // MySQL 8.0, MariaDB 10.6 and later
	SQLite     = sqldb.SQLite     // 3.42 and later
)

// Config configures [New] to keep dead letters in an application's own database.
type Config struct {
	// Dialect is the kind of database. Required.
	Dialect Dialect
	// Read is a pool for reads, so that a dashboard does not make a dead letter wait for a connection. Defaults to the
	// pool that New is given.
	Read *sql.DB
	// KeepSchema makes missing or old tables an error instead of creating them.
	KeepSchema bool
	// Monthly partitions the tables by month, as the parameter partition=month of the URL does. PostgreSQL only.
	Monthly bool
	// Schema is where the tables are, which must be the first schema of the connections' search_path; Archive is the
	// schema of the archive. PostgreSQL only. They default to the first schema of the search_path and to archive, or to
	// Schema and Schema_archive, and are created if missing.
	Schema, Archive string
	// SpoolDir is the directory for this store's spool; empty for none.
	SpoolDir string
}

// Validate reports every fault of a Config.
func (c Config) Validate() error {
	errs := []error{c.Dialect.Validate()}
	if c.Dialect != PostgreSQL && c.Monthly {
		errs = append(errs, fmt.Errorf("partitions are PostgreSQL's, not %s's", c.Dialect))
	}
	if c.Dialect != PostgreSQL && (c.Schema != "" || c.Archive != "") {
		errs = append(errs, fmt.Errorf("schemas are PostgreSQL's, not %s's, where each store has a database to itself",
			c.Dialect))
	}
	for _, name := range []string{c.Schema, c.Archive} {
		if name != "" && checkSchema(name) != nil {
			errs = append(errs, fmt.Errorf("%q %w", name, checkSchema(name)))
		}
	}
	return errors.Join(errs...)
}

// New keeps dead letters in db, which the caller has opened with a driver of its choice and closes after the Store. It
// creates the tables, unless cfg.KeepSchema. Any number of processes may call it at once.
//
// On PostgreSQL the driver must be pgx. On MySQL, sessions must be strict, commit automatically and use utf8mb4, and
// no parameter loc may make times local. On SQLite, transactions must begin as writers (_txlock=immediate), and
// connections wait for each other (busy_timeout). In a failover, db keeps its connections to a server that is now
// read-only unless the DSN has target_session_attrs=read-write (pgx) or rejectReadOnly=true (MySQL). [Open] does all of
// this with a URL.
func New(ctx context.Context, db *sql.DB, cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("sqlstore: %w", err)
	}
	s := &Store{dialect: dialectOf(cfg), write: db, read: db, foreign: true, spoolDir: cfg.SpoolDir}
	if cfg.Read != nil {
		s.read = cfg.Read
	}
	err := s.checkPool(ctx)
	if err == nil {
		err = s.start(ctx, cfg.KeepSchema)
	}
	if err != nil {
		return nil, fmt.Errorf("sqlstore: open %s: %w", cfg.Dialect, cfg.Dialect.Advise(err))
	}
	return s, nil
}

func dialectOf(cfg Config) dialect {
	switch cfg.Dialect {
	case PostgreSQL:
		return postgres{monthly: cfg.Monthly, schema: cfg.Schema, archiveIn: cfg.Archive}
	case MySQL:
		return mysql{}
	default:
		return sqlite{}
	}
}

// checkPool rejects a pool that would lose or change letters without an error.
func (s *Store) checkPool(ctx context.Context) error {
	switch s.dialect.name() {
	case PostgreSQL:
		var n int
		if err := s.write.QueryRowContext(ctx, "SELECT cardinality($1::text[])", []string{"a,b", `"`}).Scan(&n); err != nil ||
			n != 2 {
			return errors.Join(errors.New("the driver does not send slices as arrays: use github.com/jackc/pgx/v5/stdlib"), err)
		}
	case MySQL:
		if err := MySQL.CheckSession(ctx, s.write); err != nil {
			return err
		}
		var at any
		if err := s.write.QueryRowContext(ctx, "SELECT CAST('2026-01-02 03:04:05' AS DATETIME)").Scan(&at); err != nil {
			return err
		}
		if t, parsed := at.(time.Time); parsed && !t.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
			return errors.New("the connections read times in a zone: remove loc from the DSN")
		}
	case SQLite:
	}
	return nil
}
