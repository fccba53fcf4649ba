package middleware

import "math"

// The systems that this package replaces count their limit in three ways. [Config.MaxAttempts] counts runs including
// the first; these functions translate.

// Tries means n runs in total, including the first: Tries(3) runs a failing message three times. Tries(0) runs it once,
// because no message may be dead-lettered unseen.
func Tries(n int) int {
	if n == 0 {
		return 1
	}
	return n
}

// Retries means the first run and n more: Retries(3) runs a failing message four times.
func Retries(n int) int {
	if n < 0 {
		return n
	}
	return min(n, math.MaxInt-1) + 1
}

// Cycles means the first run and n trips through a waiting queue: Cycles(3) runs a failing message four times.
func Cycles(n int) int { return Retries(n) }
