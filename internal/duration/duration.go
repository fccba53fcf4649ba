// Package duration reads the durations that people write, in flags, configuration files, URLs and forms: those of Go,
// and days, in which operators think.
package duration

import (
	"cmp"
	"strconv"
	"strings"
	"time"
)

// Day has 24 hours.
const Day = 24 * time.Hour

// Parse reads 250ms, 1h30m, 90d or 1d12h: days, at most 65535, come first.
func Parse(text string) (time.Duration, error) {
	number, rest, _ := strings.Cut(text, "d")
	days, err := strconv.ParseUint(number, 10, 16)
	more, fault := time.ParseDuration(cmp.Or(rest, "0"))
	span := time.Duration(days)*Day + more
	if err != nil || fault != nil || number == text || strings.ContainsAny(rest, "+-") || span < 0 {
		return time.ParseDuration(text) // which finds the fault
	}
	return span, nil
}
