package middleware

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/redrive-go/redrive/middleware/internal/errtree"
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
	for _, known := range [...]struct {
		codes string // or their first two characters, their class
		kind  Kind
		why   string
	}{
		{"55P03", KindRetryable, "lock not available"},
		{"55006", KindRetryable, "object in use"},
		{"57014", KindRetryable, "statement timeout or cancelled"},
		{"23505", KindPermanent, "duplicate"},
		// The row that this one refers to is often created by an event that has not arrived yet.
		{"23503", KindRetryable, "foreign key not there yet"},
		{"25006", KindRetryable, "read-only: failover in progress"},
		{"26000", KindRetryable, "prepared statement gone with its connection"},
		{"08", KindRetryable, "connection"},
		{"40", KindRetryable, "transaction rolled back"},
		{"53", KindRetryable, "insufficient resources"},
		{"57", KindRetryable, "operator intervention"},
		{"58", KindRetryable, "system error"},
		{"XX", KindRetryable, "internal error"},
		{"0A", KindPermanent, "feature not supported"},
		{"21 22", KindPermanent, "invalid data"},
		{"23 44", KindPermanent, "constraint violated"},
		{"28", KindPermanent, "not authorized"},
		{"3D 3F", KindPermanent, "no such database or schema"},
		{"42", KindPermanent, "syntax error or access rule"},
		{"54", KindPermanent, "program limit exceeded"},
		{"P0", KindPermanent, "raised by a database function"},
	} {
		for prefix := range strings.FieldsSeq(known.codes) {
			if len(code) == 5 && strings.HasPrefix(code, prefix) {
				return known.kind, known.why
			}
		}
	}
	return KindUnknown, ""
}

// mysqlNumber reads the error number of go-sql-driver/mysql. Its *mysql.MySQLError has the number as a field without a
// method, so no interface can match it, and importing the driver would add it to every binary. Instead, the field is
// read by its name and kind from a type of exactly that name; everything else is left alone.
func mysqlNumber(err error) (Verdict, bool) {
	number, ok := errtree.Find(err, mysqlErrorNumber)
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

func mysqlErrorNumber(err error) (uint64, bool) {
	v := reflect.ValueOf(err)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct || v.Elem().Type().Name() != "MySQLError" {
		return 0, false
	}
	f := v.Elem().FieldByName("Number")
	if !f.IsValid() || f.Kind() != reflect.Uint16 {
		return 0, false
	}
	return f.Uint(), true
}

// mysqlKind knows the numbers of the server (from 1000, MySQL and MariaDB) and the client (from 2000).
func mysqlKind(number uint64) (Kind, string) {
	for _, known := range [...]struct {
		kind    Kind
		why     string
		numbers []uint64
	}{
		{KindRetryable, "lock wait or deadlock", []uint64{1205, 1213, 1614, 3572, 3058}},
		{KindRetryable, "too many connections", []uint64{1040, 1129, 1203, 1226, 1637}},
		{KindRetryable, "connection lost or server shutting down", []uint64{
			1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 4031, 2002, 2003, 2005, 2006, 2012, 2013,
		}},
		{KindRetryable, "read-only: failover in progress", []uint64{1290, 1792, 1836}},
		{KindRetryable, "statement interrupted or timed out", []uint64{1317, 3024, 1969, 1028}},
		{KindRetryable, "insufficient resources", []uint64{1021, 1037, 1041, 1114}},
		{KindRetryable, "foreign key not there yet", []uint64{1216, 1452}},
		{KindPermanent, "duplicate", []uint64{1062, 1169, 1586}},
		{KindPermanent, "constraint violated", []uint64{1048, 1364, 1217, 1451, 1557, 3819, 4025}},
		{KindPermanent, "invalid data", []uint64{
			1264, 1265, 1292, 1366, 1367, 1406, 1411, 1425, 1690, 1118, 3140, 3141, 3156,
		}},
		{KindPermanent, "no such table, column or syntax", []uint64{1054, 1064, 1109, 1136, 1146, 1305, 1318}},
		{KindPermanent, "not authorized", []uint64{1044, 1045, 1142, 1143, 1227, 1698}},
		{KindPermanent, "no such database", []uint64{1049}},
		{KindPermanent, "raised by a database function", []uint64{1644}},
	} {
		if slices.Contains(known.numbers, number) {
			return known.kind, known.why
		}
	}
	return KindUnknown, ""
}
