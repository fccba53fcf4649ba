package sqldb

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/internal/wait"
)

// Beginner is a pool, or a [Patient] one.
type Beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// Patient is a pool for handlers' transactions, which wait for other writers of a SQLite file until ctx ends: after
// busy_timeout, an attempt would have failed before its handler did anything.
type Patient struct{ *sql.DB }

// BeginTx implements Beginner.
func (p Patient) BeginTx(ctx context.Context, opts *sql.TxOptions) (tx *sql.Tx, err error) {
	err = Patiently(ctx, func() error {
		tx, err = p.DB.BeginTx(ctx, opts)
		return err
	})
	return tx, err
}

// InTx runs fn in a transaction, which is committed when fn returns nil and rolled back otherwise, even if fn panics.
func InTx(ctx context.Context, db Beginner, opts *sql.TxOptions, fn func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// attempts is how often a transaction with conflicts is run.
const attempts = 10

// Retry is InTx, repeated while the transaction fails only because of another one, or again reports true for its error.
func (d Dialect) Retry(
	ctx context.Context, db *sql.DB, opts *sql.TxOptions, again func(error) bool, fn func(*sql.Tx) error,
) error {
	for attempt := 1; ; attempt++ {
		err := InTx(ctx, db, opts, fn)
		if err == nil || attempt == attempts || !d.Conflict(err) && !again(err) {
			return err
		}
		if ended := wait.For(ctx, rand.N(time.Duration(attempt)*5*time.Millisecond)); ended != nil { //nolint:gosec // G404: jitter
			return errors.Join(ended, err)
		}
	}
}

// Row is one row of a result.
type Row interface{ Scan(dest ...any) error }

// Each reads and closes a result: Each(db.QueryContext(ctx, query))(read) calls read for each row. It stops at an error
// of the query or of read.
func Each(rows *sql.Rows, err error) func(read func(Row) error) error {
	return func(read func(Row) error) error {
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if err := read(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	}
}

// All is [Each] for a list: All[T](db.QueryContext(ctx, query))(scan). Without rows the list is nil.
func All[T any](rows *sql.Rows, err error) func(scan func(Row, *T) error) ([]T, error) {
	return func(scan func(Row, *T) error) ([]T, error) {
		var list []T
		err := Each(rows, err)(func(row Row) error {
			if len(list) == cap(list) {
				// append would copy a page of large rows many more times
				list = slices.Grow(list, max(8, len(list)))
			}
			list = list[:len(list)+1]
			return scan(row, &list[len(list)-1])
		})
		if err != nil {
			return nil, err
		}
		return list, nil
	}
}

// Column is [All] for rows of one column.
func Column[T any](rows *sql.Rows, err error) ([]T, error) {
	return All[T](rows, err)(func(row Row, value *T) error { return row.Scan(value) })
}

// Changed is how many rows a statement changed: Changed(db.ExecContext(ctx, query)).
func Changed(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// WithLock runs fn while this process holds the database's lock of that name. It waits for the lock: on PostgreSQL
// until ctx ends, on MySQL for five minutes. fn must not use the connection that holds the lock. On SQLite fn runs
// without one.
//
// goose's session lockers (v3.29.0) lock too late for migrations: Up first looks for pending ones without the lock, and
// creates its table there. On MySQL, where that takes two steps, another process finds the table without its first row
// and fails; on PostgreSQL it waits a second.
func (d Dialect) WithLock(ctx context.Context, db *sql.DB, name string, fn func() error) error {
	switch d {
	case PostgreSQL:
		return postgresLocked(ctx, db, name, fn)
	case MySQL:
		return mysqlLocked(ctx, db, name, fn)
	default:
		return fn()
	}
}

// postgresLocked takes a transaction-level advisory lock, not a session-level one: behind a pooler each statement
// outside of a transaction may run in another session, and the lock would never be released.
func postgresLocked(ctx context.Context, db *sql.DB, name string, fn func() error) error {
	return InTx(ctx, db, nil, func(tx *sql.Tx) error {
		h := fnv.New64a()
		_, _ = h.Write([]byte(name)) // a hash never fails
		key := int64(h.Sum64())      //nolint:gosec // G115: any number will do
		if err := Unlimited(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", key)); err != nil {
			return err
		}
		return fn()
	})
}

// Unlimited lets a transaction on PostgreSQL wait, idle, and leave a result unread for as long as its process takes.
func Unlimited(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.ExecContext(ctx, "SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN "+
		"('idle_in_transaction_session_timeout', 'lock_timeout', 'statement_timeout', 'tcp_user_timeout', "+
		"'transaction_timeout')")
	return err
}

// mysqlLockName is the lock's name in SQL. Locks belong to the server, not the database, and a name has at most 64
// characters. MySQL 9.6 removed MD5 and SHA1.
const mysqlLockName = "SHA2(CONCAT(?, DATABASE()), 256)"

// mysqlWait is how long to wait for the lock of another process, in seconds.
const mysqlWait = 300

func mysqlLocked(ctx context.Context, db *sql.DB, name string, fn func() error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // closes it: its timeouts were changed
		_ = conn.Close()
	}()
	// It is idle while fn runs, and the lock would end with its session. See mysqlIdle for the comments.
	if _, err := conn.ExecContext(ctx, "SET SESSION wait_timeout = 86400 /*M!100300 , SESSION max_statement_time = 0 */"+
		" /*!80000 , SESSION max_execution_time = 0 */"); err != nil {
		return err
	}
	var got sql.NullInt64
	err = conn.QueryRowContext(ctx, "SELECT GET_LOCK("+mysqlLockName+", ?)", name, mysqlWait).Scan(&got)
	if err == nil && got.Int64 != 1 {
		err = errors.New("another process has held the migration lock for five minutes")
	}
	if err != nil {
		return err
	}
	err = fn()
	_, released := conn.ExecContext(context.WithoutCancel(ctx), "DO RELEASE_LOCK("+mysqlLockName+")", name)
	return errors.Join(err, released)
}

// Code returns the database's code of an error: a SQLSTATE of PostgreSQL, an error number of MySQL, a primary result
// code of SQLite; empty for any other error. It detects the drivers' errors by shape, because naming their types would
// make every program link the drivers:
//
//	SQLState() string    pgx and lib/pq
//	Code() int           modernc.org/sqlite
//	Number uint16        go-sql-driver/mysql
//	Code <integer>       mattn/go-sqlite3
func Code(err error) string {
	for err != nil {
		if code := codeOf(err); code != "" {
			return code
		}
		switch wrapper := err.(type) { //nolint:errorlint // this is the walk
		case interface{ Unwrap() error }:
			err = wrapper.Unwrap()
		case interface{ Unwrap() []error }:
			for _, cause := range wrapper.Unwrap() {
				if code := Code(cause); code != "" {
					return code
				}
			}
			return ""
		default:
			return ""
		}
	}
	return ""
}

func codeOf(err error) string {
	switch coded := err.(type) { //nolint:errorlint // Code walks
	case interface{ SQLState() string }:
		return coded.SQLState()
	case interface{ Code() int }:
		return strconv.Itoa(coded.Code() & 0xff)
	}
	value := reflect.Indirect(reflect.ValueOf(err))
	if value.Kind() != reflect.Struct {
		return ""
	}
	if number := value.FieldByName("Number"); number.IsValid() && number.CanUint() {
		return strconv.FormatUint(number.Uint(), 10)
	}
	if code := value.FieldByName("Code"); code.IsValid() && code.CanInt() {
		return strconv.FormatInt(code.Int()&0xff, 10)
	}
	return ""
}

// IsCode reports whether an error has one of the codes.
func IsCode(err error, codes ...string) bool {
	code := Code(err)
	return code != "" && slices.Contains(codes, code)
}

// conflicts are the codes of transactions that may succeed when they are repeated: the database aborted them because of
// a deadlock, a serialization conflict or a row that has changed, or because the process paused in the transaction. A
// lock wait that timed out is not included: a repetition would wait as long again.
var conflicts = map[Dialect][]string{
	PostgreSQL: {"40P01", "40001", "25P03"},
	MySQL:      {"1213", "1020", "4031"},
}

// Conflict reports whether a transaction failed only because of other transactions or because it paused, and should be
// repeated.
func (d Dialect) Conflict(err error) bool { return IsCode(err, conflicts[d]...) }

// locked are the codes of a statement that met a lock, and must not wait for it or has waited long enough.
var locked = map[Dialect][]string{
	PostgreSQL: {"55P03"},
	MySQL:      {"1205", "3572"},
	SQLite:     {"5", "6"},
}

// Locked reports whether a statement failed because of a lock.
func (d Dialect) Locked(err error) bool { return IsCode(err, locked[d]...) }

// refusals are the classes of codes for values that the database will never accept: they do not fit, or are invalid.
var refusals = map[Dialect][]string{
	PostgreSQL: {"22021", "22P05", "22001", "22003", "22008", "22P02", "22P03", "54000", "23502", "23514"},
	MySQL:      {"1264", "1265", "1292", "1366", "1406", "1153", "1048", "3819", "4025", "3140", "1301"},
	SQLite:     {"18", "20", "19"},
}

// Refused reports whether the database rejects the values of a statement and would do so again: characters that it
// cannot store, text that is too long, a statement beyond its size limit. For a value beyond its packet, MySQL has no
// code but that of unknown errors.
func (d Dialect) Refused(err error) bool {
	return IsCode(err, refusals[d]...) || IsCode(err, "1105") && strings.Contains(err.Error(), "'max_allowed_packet'")
}

// Unreachable reports whether the database did not answer, as opposed to answering with an error. MySQL's driver
// reports every lost connection as an "invalid connection". A server that refuses a user or a database has answered,
// also if another address of its host does not.
func Unreachable(err error) bool {
	if err == nil || IsCode(err, "28000", "28P01", "3D000", "42501", "1044", "1045", "1049") {
		return false
	}
	var netErr net.Error
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.As(err, &netErr) ||
		Code(err) == "" && strings.HasSuffix(err.Error(), "invalid connection")
}

// away are the codes of a server that responds but accepts no connections: it is starting, stopping, full, or, in a
// failover, read-only.
var away = map[Dialect][]string{
	PostgreSQL: {"57P01", "57P02", "57P03", "53300", "08000", "08001", "08003", "08004", "08006", "25006"},
	MySQL:      {"1040", "1053", "1077", "1079", "1203", "1226", "2002", "2003", "2006", "2013"},
}

// awayTexts are of pgbouncer without its server, whose code is that of a protocol violation, and of pgx at a read-only
// server, without a code.
var awayTexts = regexp.MustCompile(
	"server_login_retry|query_wait_timeout|no more connections allowed|read only connection")

// Away reports whether a server cannot be reached, or accepts no connection now but may later. A file is never away.
func (d Dialect) Away(err error) bool {
	return d != SQLite && err != nil && (Unreachable(err) || IsCode(err, away[d]...) ||
		d == PostgreSQL && slices.Contains([]string{"", "08P01"}, Code(err)) && awayTexts.MatchString(err.Error()))
}

// Mark adds mark to an error for which Away holds.
func (d Dialect) Mark(err, mark error) error {
	if d.Away(err) {
		return fmt.Errorf("%w: %w", mark, err)
	}
	return err
}
