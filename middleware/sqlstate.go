package middleware

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// sqlState reads the SQL standard's error code, which pgx, lib/pq and others give by this method.
func sqlState(err error) (Verdict, bool) {
	e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	if !ok {
		return noVerdict()
	}
	code := strings.ToUpper(e.SQLState())
	kind, why := sqlStateKind(code)
	if kind == KindUnknown {
		return noVerdict()
	}
	return Verdict{Kind: kind, Rule: fmt.Sprintf("sqlstate %s: %s", code, why), Code: code}, true
}

func sqlStateKind(code string) (Kind, string) {
	if len(code) != 5 {
		return KindUnknown, ""
	}
	switch code {
	case "55P03":
		return KindRetryable, "lock not available"
	case "55006":
		return KindRetryable, "object in use"
	case "57014":
		return KindRetryable, "statement timeout or cancelled"
	case "23505":
		return KindPermanent, "duplicate"
	case "23503":
		// The row that this one refers to is often created by an event that has not arrived yet.
		return KindRetryable, "foreign key not there yet"
	case "25006":
		return KindRetryable, "read-only: failover in progress"
	case "26000":
		return KindRetryable, "prepared statement gone with its connection"
	}
	switch code[:2] {
	case "08":
		return KindRetryable, "connection"
	case "40":
		return KindRetryable, "transaction rolled back"
	case "53":
		return KindRetryable, "insufficient resources"
	case "57":
		return KindRetryable, "operator intervention"
	case "58":
		return KindRetryable, "system error"
	case "XX":
		return KindRetryable, "internal error"
	case "0A":
		return KindPermanent, "feature not supported"
	case "21", "22":
		return KindPermanent, "invalid data"
	case "23", "44":
		return KindPermanent, "constraint violated"
	case "28":
		return KindPermanent, "not authorized"
	case "3D", "3F":
		return KindPermanent, "no such database or schema"
	case "42":
		return KindPermanent, "syntax error or access rule"
	case "54":
		return KindPermanent, "program limit exceeded"
	case "P0":
		return KindPermanent, "raised by a database function"
	default:
		return KindUnknown, ""
	}
}

// mysqlNumber reads the error number of go-sql-driver/mysql. Its *mysql.MySQLError has the number as a field without a
// method, so no interface can match it, and importing the driver would add it to every binary. Instead, the field is
// read by its name and kind from a type of exactly that name; everything else is left alone.
func mysqlNumber(err error) (Verdict, bool) {
	number, ok := mysqlErrorNumber(err, 0)
	if !ok {
		return noVerdict()
	}
	kind, why := mysqlKind(number)
	if kind == KindUnknown {
		return noVerdict()
	}
	code := strconv.FormatUint(number, 10)
	return Verdict{Kind: kind, Rule: fmt.Sprintf("mysql %s: %s", code, why), Code: code}, true
}

// deepest bounds walks over error chains, because an error may unwrap to itself.
const deepest = 64

func mysqlErrorNumber(err error, depth int) (uint64, bool) {
	for ; err != nil && depth < deepest; depth++ {
		v := reflect.ValueOf(err)
		if v.Kind() == reflect.Pointer && !v.IsNil() && v.Elem().Kind() == reflect.Struct &&
			v.Elem().Type().Name() == "MySQLError" {
			if f := v.Elem().FieldByName("Number"); f.IsValid() && f.Kind() == reflect.Uint16 {
				return f.Uint(), true
			}
		}
		switch e := err.(type) { //nolint:errorlint // walks the chain itself
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			for _, branch := range e.Unwrap() {
				if n, ok := mysqlErrorNumber(branch, depth+1); ok {
					return n, true
				}
			}
			return 0, false
		default:
			return 0, false
		}
	}
	return 0, false
}

// mysqlKind knows the numbers of the server (from 1000, MySQL and MariaDB) and the client (from 2000).
func mysqlKind(number uint64) (Kind, string) {
	switch number {
	case 1205, 1213, 1614, 3572, 3058:
		return KindRetryable, "lock wait or deadlock"
	case 1040, 1129, 1203, 1226, 1637:
		return KindRetryable, "too many connections"
	case 1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031, 2002, 2003, 2005, 2006, 2012, 2013:
		return KindRetryable, "connection lost or server shutting down"
	case 1290, 1792, 1836:
		return KindRetryable, "read-only: failover in progress"
	case 1317, 3024, 1969, 1028:
		return KindRetryable, "statement interrupted or timed out"
	case 1021, 1037, 1041, 1114:
		return KindRetryable, "insufficient resources"
	case 1216, 1452:
		return KindRetryable, "foreign key not there yet"
	case 1062, 1169, 1586:
		return KindPermanent, "duplicate"
	case 1048, 1364, 1217, 1451, 1557, 3819, 4025:
		return KindPermanent, "constraint violated"
	case 1264, 1265, 1292, 1366, 1367, 1406, 1411, 1425, 1690, 1118, 3140, 3141, 3156:
		return KindPermanent, "invalid data"
	case 1054, 1064, 1109, 1136, 1146, 1305, 1318:
		return KindPermanent, "no such table, column or syntax"
	case 1044, 1045, 1142, 1143, 1227, 1698:
		return KindPermanent, "not authorized"
	case 1049:
		return KindPermanent, "no such database"
	case 1644:
		return KindPermanent, "raised by a database function"
	default:
		return KindUnknown, ""
	}
}
