package middleware

import "math"

// The systems that this package replaces count their limit in three ways. [Config.MaxAttempts] counts runs including
// the first; these say the same in their words.

// Tries is n runs in all, the first included: Tries(3) runs a failing message three times.
// Tries(0) runs it once, for no message can be dead-lettered unseen.
func Tries(n int) int {
	if n == 0 {
		return 1
	}
	return n
}

// Retries is the first run and n more: Retries(3) runs a failing message four times.
func Retries(n int) int {
	if n < 0 {
		return n
	}
	return min(n, math.MaxInt-1) + 1
}

// Cycles is the first run and n trips through a waiting queue: Cycles(3) runs a failing message four times.
func Cycles(n int) int { return Retries(n) }
