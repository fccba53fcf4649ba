package cloudevents

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/redrive-go/redrive/envelope"
)

// isoDuration accepts only durations of a fixed length: no years and months.
var isoDuration = regexp.MustCompile(`^P(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,12}(?:\.\d{1,9})?)S)?)?$`)

// formatDuration returns d as an ISO 8601 duration in seconds: "PT10S", "PT0.3S".
func formatDuration(d time.Duration) string {
	return "PT" + strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "S"
}

// parseDuration reads an ISO 8601 duration of days, hours, minutes and seconds, at most envelope.MaxDelay.
func parseDuration(text string) (time.Duration, error) {
	parts := isoDuration.FindStringSubmatch(text)
	if parts == nil || text == "P" {
		return 0, fmt.Errorf("cloudevents: originaldelay %.40q is not an ISO 8601 duration of days and time, such as PT10S",
			text)
	}
	var seconds float64
	for i, unit := range [...]float64{24 * 3600, 3600, 60, 1} {
		if part := parts[i+1]; part != "" {
			n, err := strconv.ParseFloat(part, 64)
			if err != nil {
				return 0, fmt.Errorf("cloudevents: originaldelay: %w", err)
			}
			seconds += n * unit
		}
	}
	if seconds > envelope.MaxDelay.Seconds() {
		return envelope.MaxDelay, nil
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond), nil
}
