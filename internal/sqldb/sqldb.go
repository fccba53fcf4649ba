// Package sqldb contains what this module's packages with SQL storage share: dialects, URLs and pools, the meaning of
// errors, retries of transactions, and schema migrations. It imports no driver.
package sqldb

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Dialect names the kind of database behind a *sql.DB.
type Dialect string

// The databases that this module works with.
const (
	PostgreSQL Dialect = "postgres" // 12 and later
	MySQL      Dialect = "mysql"    // MySQL 8.0, MariaDB 10.6 and later
	SQLite     Dialect = "sqlite"   // 3.42 and later
)

// Validate refuses a dialect other than the three.
func (d Dialect) Validate() error {
	switch d {
	case PostgreSQL, MySQL, SQLite:
		return nil
	}
	return fmt.Errorf("unknown dialect %q: known are %s, %s, %s", string(d), PostgreSQL, MySQL, SQLite)
}

// Bind turns each ? of a statement into the database's placeholder. The statement must not contain other question
// marks.
func (d Dialect) Bind(query string) string {
	if d != PostgreSQL {
		return query
	}
	return BindFrom(1, query)
}

// BindFrom is Bind for a part of a statement of PostgreSQL, with placeholders from $first.
func BindFrom(first int, query string) string {
	var b strings.Builder
	b.Grow(len(query) + len(query)/8 + 8)
	for n := first; ; n++ {
		before, after, found := strings.Cut(query, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		b.WriteByte('$')
		b.WriteString(strconv.Itoa(n))
		query = after
	}
}

// Map are the results of a function for the elements of a list: arguments or columns of a statement, ids of its rows.
func Map[T, R any](list []T, of func(*T) R) []R {
	results := make([]R, len(list))
	for i := range list {
		results[i] = of(&list[i])
	}
	return results
}

// Tick is the resolution of SQLite's clock, in microseconds; the other databases' is one.
const Tick = 1000

// Now is SQL for the server's time in microseconds since 1970, independent of the session's time zone. It is constant
// within a statement, so that an index condition can use it.
func (d Dialect) Now() string {
	switch d {
	case PostgreSQL:
		return "(extract(epoch FROM statement_timestamp()) * 1000000)::bigint"
	case MySQL: // UNIX_TIMESTAMP uses the session's time zone, and is an hour off when clocks are set back
		return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
	default:
		return "CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000"
	}
}

// Clock is Now for a statement in a transaction of the application. It is evaluated each time it is used, so an index
// condition cannot use it.
func (d Dialect) Clock() string {
	return strings.Replace(d.Now(), "statement_timestamp", "clock_timestamp", 1)
}

// AwaitDisk is an expression of PostgreSQL that makes the commit of its transaction wait for the disk, where a database
// or a role does not: a crash would lose messages whose originals were acked. MySQL has a setting of the server for it
// (innodb_flush_log_at_trx_commit = 1, the default), SQLite one of the connection.
const AwaitDisk = "set_config('synchronous_commit', 'on', true)"

// ForUpdate ends a SELECT whose rows will be changed. A transaction on SQLite, which begins as a writer, locks the
// whole database.
func (d Dialect) ForUpdate() string {
	if d == SQLite {
		return ""
	}
	return " FOR UPDATE"
}

// Latest ends a SELECT, also in a transaction of the application, that must read what is committed now. On MySQL only
// a locking read does: REPEATABLE READ shows the rows of the transaction's beginning, and READ UNCOMMITTED those of
// transactions that may be rolled back.
func (d Dialect) Latest() string {
	if d == MySQL {
		return " LOCK IN SHARE MODE"
	}
	return ""
}

// ReadCommitted are the options of a transaction in which each statement sees the rows committed so far. MySQL's
// default level also locks the gaps between rows, so that processes would wait for each other. SQLite has only one
// level.
func (d Dialect) ReadCommitted() *sql.TxOptions {
	if d == SQLite {
		return nil
	}
	return &sql.TxOptions{Isolation: sql.LevelReadCommitted}
}

// Execer is a pool, a connection or a transaction.
type Execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// InsertNew executes an INSERT of one row, and reports whether it stored the row: false if one of its unique keys
// exists. On MySQL it does not count rows, because there an application's DSN decides whether an existing row counts
// (clientFoundRows).
func (d Dialect) InsertNew(ctx context.Context, db Execer, insert string, args ...any) (bool, error) {
	if d == MySQL {
		_, err := db.ExecContext(ctx, insert, args...)
		if IsCode(err, "1062") {
			return false, nil
		}
		return err == nil, err
	}
	n, err := Changed(db.ExecContext(ctx, d.Bind(insert)+" ON CONFLICT DO NOTHING", args...))
	return n > 0, err
}

// Tuples repeats a group of placeholders n times, for a VALUES list.
func Tuples(tuple string, n int) string {
	return strings.TrimSuffix(strings.Repeat(tuple+",", n), ",")
}

// IDs writes integers as 1,2,3, which needs no quoting.
func IDs(ids []int64) string {
	b := make([]byte, 0, len(ids)*8)
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, id, 10)
	}
	return string(b)
}

const (
	clockEvery   = 10 * time.Second
	clockTimeout = time.Second
	clockTries   = 3
	// An answer that took longer than clockSlow is too old to set a clock by: the process or the network hung meanwhile.
	clockSlow = 250 * time.Millisecond
	// clockStep is how far the wall clock may drift from the monotonic one before the database is queried: the monotonic
	// clock stops while a machine sleeps.
	clockStep = time.Second
)

// Clock is a database's clock, shared by processes on many machines. It queries the database every ten seconds; in
// between it adds the process's monotonic clock, which is never adjusted.
type Clock struct {
	db      *sql.DB
	dialect Dialect

	mu     sync.Mutex
	server time.Time // the database's time
	local  time.Time // the process's time of that answer
	asking bool
}

// NewClock makes the clock of db. On SQLite it is the process's.
func NewClock(dialect Dialect, db *sql.DB) *Clock { return &Clock{db: db, dialect: dialect} }

// Now returns the time, in UTC. While the database does not answer, the last answer is extrapolated; before the first
// answer it is the process's time.
func (c *Clock) Now(ctx context.Context) time.Time {
	local := time.Now()
	if c.dialect == SQLite {
		return local.UTC().Round(0)
	}
	c.mu.Lock()
	ask := !c.asking && c.stale(local)
	c.asking = c.asking || ask
	c.mu.Unlock()
	if ask {
		c.ask(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server.IsZero() {
		return local.UTC().Round(0)
	}
	return c.server.Add(time.Since(c.local))
}

// stale reports whether the database has to be queried. The caller holds the lock.
func (c *Clock) stale(local time.Time) bool {
	age := local.Sub(c.local)
	step := local.Round(0).Sub(c.local.Round(0)) - age // Round strips the monotonic reading
	return c.server.IsZero() || age >= clockEvery || step.Abs() >= clockStep
}

// ask queries the database's clock. Of several slow answers the fastest counts; an error changes nothing.
func (c *Clock) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, clockTimeout)
	defer cancel()
	var server, local time.Time
	best := time.Duration(-1)
	for range clockTries {
		var micros int64
		sent := time.Now()
		if c.db.QueryRowContext(ctx, "SELECT "+c.dialect.Now()).Scan(&micros) != nil {
			break
		}
		if took := time.Since(sent); best < 0 || took < best {
			best, server, local = took, time.UnixMicro(micros).UTC(), sent.Add(took/2)
		}
		if best < clockSlow {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asking = false; best >= 0 {
		c.server, c.local = server, local
	}
}
