// Package cpf checks Brazilian taxpayer numbers (CPF). The examples use it because an invalid CPF is a
// typical error that no retry can fix.
package cpf

import "strings"

// Valid reports whether s is a CPF: eleven digits, with or without the usual dots and dash, whose last two are the
// check digits of the others. Numbers of one repeated digit satisfy the arithmetic but are never issued.
func Valid(s string) bool {
	digits := strings.NewReplacer(".", "", "-", "").Replace(s)
	if len(digits) != 11 || strings.Trim(digits, "0123456789") != "" || strings.Trim(digits, digits[:1]) == "" {
		return false
	}
	return digits[9] == check(digits[:9]) && digits[10] == check(digits[:10])
}

// check returns the check digit for a CPF's leading digits, from their sum, weighted len+1 down to 2, modulo 11, as the
// Receita Federal defines it.
func check(digits string) byte {
	sum := 0
	for i, d := range []byte(digits) {
		sum += int(d-'0') * (len(digits) + 1 - i)
	}
	return "00987654321"[sum%11]
}
