// Package duration reads the durations and times that people write, in flags, configuration files, URLs and forms:
// those of Go, and days, in which operators think.
package duration

import (
	"cmp"
	"fmt"
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

// Time reads a time such as 2026-02-28, 2026-02-28 22:53 or 2026-02-28T22:53:07Z, in UTC unless it has a zone.
func Time(text string) (time.Time, error) {
	for _, form := range []string{
		time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, "2006-01-02 15:04", time.DateOnly,
	} {
		if t, err := time.Parse(form, text); err == nil {
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time such as 2025-11-20 or 2025-11-20T07:30:00Z (UTC)", text)
}
