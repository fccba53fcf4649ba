// Package cpf checks Brazilian taxpayer numbers (CPF). The examples use it because an invalid CPF is a
// typical error that no retry can fix.
package cpf

// Valid reports whether s is a CPF: eleven digits, with or without the usual dots and dash, whose last two are the
// check digits of the others. Numbers of one repeated digit satisfy the arithmetic but are never issued.
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
