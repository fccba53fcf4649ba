package envelope

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// timestampLayout is RFC 3339 with a numeric offset even for UTC, as in the schema; a fraction is written only if there
// is one.
const timestampLayout = "2006-01-02T15:04:05.999999999-07:00"

func formatTimestamp(t time.Time) string { return t.UTC().Format(timestampLayout) }

func formatTime(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func parseTime(text string) (time.Time, bool) {
	t, err := time.Parse(time.RFC3339Nano, text)
	return t, err == nil
}

func timeHeader(md message.Metadata, key string) (time.Time, bool) {
	text, ok := md[key]
	if !ok {
		return time.Time{}, false
	}
	return parseTime(text)
}
