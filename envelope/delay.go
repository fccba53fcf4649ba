package envelope

import (
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// SetDelay asks the publisher to deliver the message for the first time after d, a business delay such as "remind in 10
// s". It writes x-delay and, unless already present, x-original-delay, the base of the backoff, which no retry changes.
// d is clamped to [0, MaxDelay] and truncated to whole milliseconds.
func SetDelay(m *message.Message, d time.Duration) {
	d, _ = clampDelay(d)
	setHeader(m, KeyDelay, formatMillis(d))
	if m.Metadata[KeyOriginalDelay] == "" {
		setHeader(m, KeyOriginalDelay, formatMillis(d))
	}
}

// TakeDelay is the publisher's counterpart of SetDelay: it returns the first-delivery delay that the message asks for,
// in our header or in those of Watermill's components/delay, and whether it asks for one. It removes the request from
// the message, so that it is not delayed again downstream, and records it as the original delay if there is none yet.
// The delay is within [0, MaxDelay]; an unreadable request is removed and ignored.
func TakeDelay(m *message.Message) (time.Duration, bool) {
	d, asked, _ := requestedDelay(m.Metadata)
	delete(m.Metadata, KeyDelay)
	delete(m.Metadata, KeyWatermillDelayedFor)
	delete(m.Metadata, KeyWatermillDelayedUntil)
	if asked && m.Metadata[KeyOriginalDelay] == "" {
		setHeader(m, KeyOriginalDelay, formatMillis(d))
	}
	return d, asked
}

// requestedDelay reads the first-delivery delay that a message asks for.
func requestedDelay(md message.Metadata) (d time.Duration, asked, clamped bool) {
	if text := md[KeyDelay]; text != "" {
		d, ok, clamped := parseMillis(text)
		return d, ok, clamped
	}
	if text := md[KeyWatermillDelayedFor]; text != "" {
		if d, err := time.ParseDuration(text); err == nil {
			d, clamped = clampDelay(d)
			return d, true, clamped
		}
		clamped = true
	}
	if text := md[KeyWatermillDelayedUntil]; text != "" {
		if until, err := time.Parse(time.RFC3339, text); err == nil {
			d, over := clampDelay(time.Until(until))
			return d, true, clamped || over && d > 0 // a time in the past is not a fault
		}
		clamped = true
	}
	return 0, false, clamped
}

// originalDelay reads the base of the backoff. A foreign producer's message that was not published through one of our
// publishers may still hold Watermill's request, which then is the original delay.
func originalDelay(md message.Metadata) (d time.Duration, clamped bool) {
	if text, ok := md[KeyOriginalDelay]; ok {
		d, _, clamped = parseMillis(text)
		return d, clamped
	}
	if text, ok := md[KeyWatermillDelayedFor]; ok {
		parsed, err := time.ParseDuration(text)
		if err != nil {
			return 0, true
		}
		return clampDelay(parsed)
	}
	if text, ok := md[KeyDelay]; ok { // a producer in another language has asked the broker directly
		d, _, clamped = parseMillis(text)
		return d, clamped
	}
	return 0, false
}

// parseMillis reads a decimal number of milliseconds. It reports whether the number is valid and whether it was out of
// range.
func parseMillis(text string) (d time.Duration, valid, clamped bool) {
	ms, valid := parseDigits(text, MaxDelay.Milliseconds())
	if !valid {
		return 0, false, true
	}
	d, clamped = clampDelay(time.Duration(ms) * time.Millisecond)
	return d, true, clamped
}

func clampDelay(d time.Duration) (time.Duration, bool) {
	if d < 0 {
		return 0, true
	}
	if d > MaxDelay {
		return MaxDelay, true
	}
	return d, false
}

func formatMillis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// setHeader writes a header of a message that may have been created without NewMessage.
func setHeader(m *message.Message, key, value string) {
	if m.Metadata == nil {
		m.Metadata = make(message.Metadata)
	}
	m.Metadata[key] = value
}
