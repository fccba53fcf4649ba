package sqlstore

import (
	"bytes"
	"strconv"
)

// mysqlDigits limits the numbers that are projected: MySQL reads them as doubles, which have 308 digits before the
// point.
const mysqlDigits = 300

// projection is 1 for JSON: the view then converts the payload to text. MySQL reads JSON that is nested up to 100 deep
// and numbers that fit a double, MariaDB 32 deep, and neither reads lone surrogates. On MySQL one unreadable row fails
// every statement that touches it, such as a search by a field: when in doubt this returns NULL.
func (mysql) projection(payload []byte) any {
	if len(payload) <= mysqlPart && validJSON(payload, 30) && plainEscapes(payload) && eachNumber(payload, mysqlNumber) {
		return 1
	}
	return 0
}

// mysqlNumber checks how a number is written, as MySQL does, which rejects 0e999.
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
