// Package suggest finds the name that a mistyped word was probably meant to be, for errors that ask "did you mean".
package suggest

import "strings"

// Nearest returns the name that word was probably meant to be, or "". Case does not count.
func Nearest(word string, names []string) string {
	best, least := "", 2+len(word)/3
	for _, name := range names {
		if d := distance(strings.ToLower(word), strings.ToLower(name)); d < least {
			best, least = name, d
		}
	}
	return best
}

// distance counts the inserted, deleted and replaced bytes between a and b (Levenshtein), with one row of memory.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
