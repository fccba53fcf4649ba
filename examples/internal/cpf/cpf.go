// Package cpf checks and formats Brazilian taxpayer numbers (CPF). The examples use it because an invalid CPF is a
// typical error that no retry can fix.
package cpf

import "fmt"

// Valid reports whether s is a CPF: eleven digits, with or without the usual
// dots and dash, whose last two are the check digits of the others. Numbers of
// one repeated digit satisfy the arithmetic but are never issued.
func Valid(s string) bool {
	digits := make([]int, 0, 11)
	for _, r := range s {
		switch {
		case r >= '0' && r <= '9':
			digits = append(digits, int(r-'0'))
		case r == '.' || r == '-':
		default:
			return false
		}
	}
	if len(digits) != 11 {
		return false
	}
	repeated := true
	for _, d := range digits[1:] {
		repeated = repeated && d == digits[0]
	}
	return !repeated && digits[9] == check(digits[:9]) && digits[10] == check(digits[:10])
}

// Format writes the CPF whose first nine digits are base (0 to 999,999,999),
// as 000.000.000-00.
func Format(base int) string {
	digits := make([]int, 9, 11)
	for i := 8; i >= 0; i-- {
		digits[i] = base % 10
		base /= 10
	}
	digits = append(digits, check(digits))
	digits = append(digits, check(digits))
	d := digits
	return fmt.Sprintf("%d%d%d.%d%d%d.%d%d%d-%d%d", d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7], d[8], d[9], d[10])
}

// check returns the check digit for a CPF's leading digits: their sum, weighted len+1 down to 2, modulo 11, as the
// Receita Federal defines it.
func check(digits []int) int {
	sum := 0
	for i, d := range digits {
		sum += d * (len(digits) + 1 - i)
	}
	if r := sum % 11; r >= 2 {
		return 11 - r
	}
	return 0
}
