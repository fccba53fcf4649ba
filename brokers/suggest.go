package brokers

import (
	"fmt"
	"slices"
	"strings"
)

// unknownParam reports the known parameters and, for a probable typo, which one was meant. The value is left out: it
// may be a misplaced secret.
func unknownParam(where, name string, known []string) error {
	known = slices.Clone(known)
	slices.Sort(known)
	list := "there are none"
	if len(known) > 0 {
		list = "known are " + strings.Join(known, ", ")
	}
	hint := ""
	if best := nearest(name, known); best != "" {
		hint = fmt.Sprintf("did you mean %s? ", best)
	}
	return fmt.Errorf("%s: unknown parameter %q: %s%s", where, name, hint, list)
}

// nearest returns the candidate that name was probably meant to be, or "".
func nearest(name string, candidates []string) string {
	best, least := "", 1+len(name)/3
	for _, c := range candidates {
		if d := editDistance(strings.ToLower(name), strings.ToLower(c)); d <= least && (best == "" || d < least) {
			best, least = c, d
		}
	}
	return best
}

// editDistance counts the inserted, deleted and replaced bytes between a and b (Levenshtein), with one row of memory.
func editDistance(a, b string) int {
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
