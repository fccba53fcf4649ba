package envelope

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Limits of the texts that this package writes into headers. A header frame above 128 KiB closes an AMQP connection,
// and a Kafka record near its limit must still be dead-letterable, so every text is bounded and all of them together
// stay below MaxHeaders.
const (
	MaxErrorMessage = 1 << 10  // bytes of an error's message
	MaxErrorTrace   = 4 << 10  // bytes of an error's trace
	MaxHeaders      = 16 << 10 // bytes of all headers that this package writes, names included
	maxName         = 255      // bytes of an id, a code, a class or any other name
)

// boundText returns s as valid UTF-8 of at most limit bytes. A longer text is cut at a rune boundary and marked as cut.
func boundText(s string, limit int) string {
	// An error may be many megabytes long: clean only the part that may stay, and a last rune that the marker replaces.
	clean := strings.ToValidUTF8(s[:min(len(s), limit+utf8.UTFMax)], string(utf8.RuneError))
	if len(s) <= limit && len(clean) <= limit {
		return clean
	}
	marker := "... [cut, " + strconv.Itoa(len(s)) + " bytes in all]"
	end := max(0, min(len(clean), limit-len(marker)))
	for end > 0 && end < len(clean) && !utf8.RuneStart(clean[end]) {
		end--
	}
	return clean[:end] + marker
}

// headerText returns s bounded and on one line, for a header that is only displayed: control characters become escapes,
// so that they cannot split a log line or an HTTP response made from the header.
func headerText(s string, limit int) string {
	return escapeText(boundText(s, limit), limit, false)
}

// escapeText escapes control characters, and the backslash if unescapeText is to reverse it. If the result exceeds the
// limit, it is cut between two runes and ends in three dots.
func escapeText(s string, limit int, reversible bool) string {
	plain := func(r rune) bool { return r >= ' ' && r != 0x7f && (r != '\\' || !reversible) }
	if strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	const cut = "..."
	b := make([]byte, 0, len(s)+16)
	kept := 0
	for _, r := range s {
		if len(b)+len(cut) <= limit {
			kept = len(b)
		}
		switch {
		case plain(r):
			b = utf8.AppendRune(b, r)
		case r == '\\':
			b = append(b, `\\`...)
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, `\x`...)
			b = append(b, hexDigits[r>>4], hexDigits[r&15])
		}
		if len(b) > limit {
			return string(append(b[:kept], cut...))
		}
	}
	return string(b)
}

// unescapeText reverses escapeText. An unknown escape stays unchanged: escapeText did not write it.
func unescapeText(s string) string {
	if strings.IndexByte(s, '\\') < 0 {
		return s
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			b = append(b, s[i])
			continue
		}
		i++
		switch s[i] {
		case '\\':
			b = append(b, '\\')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'x':
			if i+2 < len(s) {
				if v, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil && v < utf8.RuneSelf {
					b = append(b, byte(v))
					i += 2
					continue
				}
			}
			b = append(b, '\\', 'x')
		default:
			b = append(b, '\\', s[i])
		}
	}
	return string(b)
}

const hexDigits = "0123456789abcdef"

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
