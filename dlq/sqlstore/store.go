package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/huandu/go-sqlbuilder"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/internal/sqldb"
)

// Store is a [dlq.Store] in a SQL database. It is safe for concurrent use, in any number of processes on one database.
type Store struct {
	dialect  dialect
	write    *sql.DB
	read     *sql.DB // the same as write where one pool does both
	spoolDir string
	foreign  bool // the pools belong to the application, which closes them

	writer *writer
	clock  *sqldb.Clock

	closeOnce sync.Once
	closeErr  error
	closed    chan struct{}
}

var (
	_ dlq.Store           = (*Store)(nil)
	_ driver.Clock        = (*Store)(nil)
	_ driver.ArchiveStore = (*Store)(nil)
	_ driver.MonthStore   = (*Store)(nil)
	_ driver.PeopleStore  = (*Store)(nil)
	_ driver.LedgerStore  = (*Store)(nil)
	_ driver.NoticeStore  = (*Store)(nil)
	_ driver.ServiceStore = (*Store)(nil)
)

// Open opens the store that the URL names, as dlq.Open does without a sink and a spool. The caller closes it.
func Open(ctx context.Context, rawURL string) (*Store, error) {
	u, err := driver.ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	return openURL(ctx, u)
}

// start checks the connection, migrates the schema unless keepSchema is set, and starts the writer. On an error it
// closes the pools that the store owns.
func (s *Store) start(ctx context.Context, keepSchema bool) error {
	s.closed = make(chan struct{})
	err := s.write.PingContext(ctx)
	if err == nil {
		err = s.migrate(ctx, keepSchema)
	}
	if err != nil {
		return errors.Join(err, s.closeDB())
	}
	s.clock = sqldb.NewClock(s.dialect.name(), s.read)
	s.clock.Now(ctx) // queries the database, which has just answered
	s.writer = startWriter(s, s.writers())
	return nil
}

// writers is the number of goroutines that write. On a server, one works while the other waits for the server; a
// database in a file has one writer at a time.
func (s *Store) writers() int {
	if s.dialect.name() == SQLite || s.write.Stats().MaxOpenConnections == 1 {
		return 1
	}
	return 2
}

// SpoolDir is the directory for this store's spool; empty if the store is not a file on this machine.
func (s *Store) SpoolDir() string { return s.spoolDir }

// Now returns the database's time; SQLite's is the process's.
func (s *Store) Now(ctx context.Context) time.Time { return s.clock.Now(ctx) }

// Ping reports whether the store can take a dead letter now: it begins a transaction that can write, and ends it.
func (s *Store) Ping(ctx context.Context) error {
	return s.inTx(ctx, "ping", func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "UPDATE dlq_counts SET pending = pending WHERE event_type IS NULL")
		return err
	})
}

// Close finishes the writes in flight and closes the connections, except those of [New]. It may be called twice.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		close(s.closed)
		s.writer.stop()
		s.closeErr = s.closeDB()
	})
	return s.closeErr
}

func (s *Store) closeDB() error {
	if s.foreign {
		return nil
	}
	return errors.Join(s.read.Close(), s.write.Close()) // the second does nothing if they are the same
}

// inTx runs fn in a durable transaction, and names the operation in the error.
func (s *Store) inTx(ctx context.Context, what string, fn func(*sql.Tx) error) error {
	if err := s.checkOpen(what); err != nil {
		return err
	}
	if err := durably(ctx, s.dialect.name(), s.write, fn); err != nil {
		return fmt.Errorf("sqlstore: %s: %w", what, err)
	}
	return nil
}

// audited is inTx for a change with one record in the audit log.
func (s *Store) audited(ctx context.Context, what string, record driver.AuditRecord, fn func(*sql.Tx) error) error {
	return s.inTx(ctx, what, func(tx *sql.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		return s.insertAudit(ctx, tx, []driver.AuditRecord{record})
	})
}

// writing is inTx for a result.
func writing[T any](ctx context.Context, s *Store, what string, write func(*sql.Tx) (T, error)) (T, error) {
	var result, none T
	err := s.inTx(ctx, what, func(tx *sql.Tx) (err error) {
		result, err = write(tx)
		return err
	})
	if err != nil {
		return none, err
	}
	return result, nil
}

// reading reads from the open store, and names the operation in the error.
func reading[T any](s *Store, what string, read func() (T, error)) (T, error) {
	var none T
	if err := s.checkOpen(what); err != nil {
		return none, err
	}
	found, err := read()
	if err != nil {
		return none, fmt.Errorf("sqlstore: %s: %w", what, notFound(err))
	}
	return found, nil
}

func (s *Store) checkOpen(what string) error {
	select {
	case <-s.closed:
		return fmt.Errorf("sqlstore: %s: %w", what, dlq.ErrClosed)
	default:
		return nil
	}
}

// bind replaces each ? of a handwritten statement with the database's placeholder.
func (s *Store) bind(query string) string { return s.dialect.name().Bind(query) }

// forUpdate ends a SELECT whose rows will be changed.
func (s *Store) forUpdate() string { return s.dialect.name().ForUpdate() }

// exec executes a handwritten statement.
func (s *Store) exec(ctx context.Context, tx *sql.Tx, query string, args ...any) (sql.Result, error) {
	return tx.ExecContext(ctx, s.bind(query), args...)
}

// query executes a handwritten query.
func (s *Store) query(ctx context.Context, tx *sql.Tx, query string, args ...any) (*sql.Rows, error) {
	return tx.QueryContext(ctx, s.bind(query), args...)
}

func (s *Store) queryRow(ctx context.Context, tx *sql.Tx, query string, args ...any) *sql.Row {
	return tx.QueryRowContext(ctx, s.bind(query), args...)
}

// rows is query outside of a transaction.
func (s *Store) rows(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	return s.read.QueryContext(ctx, s.bind(query), args...)
}

func (s *Store) row(ctx context.Context, query string, args ...any) *sql.Row {
	return s.read.QueryRowContext(ctx, s.bind(query), args...)
}

// flavor is for the statement builder.
func (s *Store) flavor() sqlbuilder.Flavor {
	return map[Dialect]sqlbuilder.Flavor{
		PostgreSQL: sqlbuilder.PostgreSQL, MySQL: sqlbuilder.MySQL, SQLite: sqlbuilder.SQLite,
	}[s.dialect.name()]
}

// selectFrom begins a built query.
func (s *Store) selectFrom(table string, columns ...string) *sqlbuilder.SelectBuilder {
	return s.flavor().NewSelectBuilder().Select(columns...).From(table)
}

// find executes a built query.
func (s *Store) find(ctx context.Context, b *sqlbuilder.SelectBuilder) (*sql.Rows, error) {
	query, args := b.Build()
	return s.read.QueryContext(ctx, query, args...)
}

func (s *Store) findRow(ctx context.Context, b *sqlbuilder.SelectBuilder) *sql.Row {
	query, args := b.Build()
	return s.read.QueryRowContext(ctx, query, args...)
}

// maxRows is how many rows a statement has whose parameters are values.
const maxRows = 64

func insertInto(table string, columns []string, rows int) string {
	return "INSERT INTO " + table + " (" + strings.Join(columns, ", ") + ") VALUES " + questionMarks(len(columns), rows)
}

// tableRows are rows to insert into a table.
type tableRows struct {
	table   string
	columns []string
	rows    [][]any
}

// scanIDs puts the result of a query, ids and keys, into a map.
func scanIDs(rows *sql.Rows, err error) func(ids map[driver.Key]int64) error {
	return func(ids map[driver.Key]int64) error {
		return sqldb.Each(rows, err)(func(row sqldb.Row) error {
			var id int64
			var key []byte
			if err := row.Scan(&id, &key); err != nil {
				return err
			}
			ids[driver.Key(key)] = id
			return nil
		})
	}
}

// lockEntries reads entries that are about to change, in the order of their ids so that two transactions do not
// deadlock. Missing entries are not in the map.
func (s *Store) lockEntries(ctx context.Context, tx *sql.Tx, ids []int64) (map[int64]*dlq.Entry, error) {
	found := make(map[int64]*dlq.Entry, len(ids))
	for in, args := range s.dialect.idIn("id", slices.Sorted(slices.Values(ids))) {
		entries, err := scanEntries(s.query(ctx, tx, "SELECT "+selectEntry+" FROM dlq_entries WHERE "+in+
			" ORDER BY id"+s.forUpdate(), args...))
		if err != nil {
			return nil, err
		}
		for i := range entries {
			found[entries[i].ID] = &entries[i]
		}
	}
	return found, nil
}

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
	err := s.checkPool(ctx, s.write)
	if err == nil && s.read != s.write && s.read.PingContext(ctx) == nil { // without reads, letters can still be stored
		err = s.checkPool(ctx, s.read)
	}
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
func (s *Store) checkPool(ctx context.Context, db *sql.DB) error {
	switch s.dialect.name() {
	case PostgreSQL:
		var n int
		err := db.QueryRowContext(ctx, "SELECT cardinality($1::text[])", []string{"a,b", `"`}).Scan(&n)
		if err != nil || n != 2 {
			return errors.Join(errors.New("the driver does not send slices as arrays: use github.com/jackc/pgx/v5/stdlib"), err)
		}
	case MySQL:
		if err := MySQL.CheckSession(ctx, db); err != nil {
			return err
		}
		var winter, summer time.Time // London's is UTC in winter
		err := db.QueryRowContext(ctx, "SELECT CAST('2026-01-02' AS DATETIME), CAST('2026-07-02' AS DATETIME)").
			Scan(timeValue{&winter}, timeValue{&summer})
		if err == nil && (winter.Hour() != 0 || summer.Hour() != 0) {
			return errors.New("the connections read times in a zone: remove loc from the DSN")
		}
		return err
	case SQLite:
	}
	return nil
}
