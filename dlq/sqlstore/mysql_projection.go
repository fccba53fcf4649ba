package sqlstore

import (
	"bytes"
	"strconv"
)

// mysqlDigits bounds the numbers that are projected: a double, as which MySQL reads them, has 308 digits before its
// point.
const mysqlDigits = 300

// projection is 1 for JSON: the view makes text of the payload then. MySQL reads JSON that is nested up to 100 deep and
// numbers that a double holds, MariaDB 32 deep, and both no lone surrogates. On MySQL one row that it cannot read fails
// every statement that comes by, such as a search by a field: when in doubt this says no.
func (mysql) projection(payload []byte) any {
	if len(payload) <= mysqlPart && validJSON(payload, 30) && plainEscapes(payload) && eachNumber(payload, mysqlNumber) {
		return 1
	}
	return 0
}

// mysqlNumber goes by how a number is written. MySQL does the same, and refuses 0e999.
func mysqlNumber(number []byte) bool {
	if !plainNumber(number) {
		return false
	}
	number = bytes.TrimPrefix(number, []byte("-"))
	digits := len(number)
	if end := bytes.IndexAny(number, ".eE"); end >= 0 {
		digits = end
	}
	if e := bytes.IndexAny(number, "eE"); e >= 0 {
		exponent, err := strconv.Atoi(string(number[e+1:])) // at most three digits
		if err != nil {
			return false
		}
		digits += max(exponent, 0)
	}
	return digits <= mysqlDigits
}
