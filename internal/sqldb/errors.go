package sqldb

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

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
// cannot store, text that is too long, a statement beyond its size limit.
func (d Dialect) Refused(err error) bool { return IsCode(err, refusals[d]...) }

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
