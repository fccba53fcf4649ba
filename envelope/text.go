package envelope

import (
	"strconv"
	"strings"
	"unicode/utf8"
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
	head := s[:min(len(s), limit)] // an error may be many megabytes long: clean only the part that may stay
	if r, size := utf8.DecodeLastRuneInString(head); len(head) < len(s) && r == utf8.RuneError && size == 1 {
		head = dropPartialRune(head)
	}
	clean := strings.ToValidUTF8(head, string(utf8.RuneError))
	if len(head) == len(s) && len(clean) <= limit {
		return clean
	}
	marker := "... [cut, " + strconv.Itoa(len(s)) + " bytes in all]"
	end := max(0, min(len(clean), limit-len(marker)))
	for end > 0 && end < len(clean) && !utf8.RuneStart(clean[end]) {
		end--
	}
	return clean[:end] + marker
}

// dropPartialRune removes the leading bytes of a truncated rune.
func dropPartialRune(s string) string {
	for i := 1; i < utf8.UTFMax && i <= len(s); i++ {
		if c := s[len(s)-i]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRuneInString(s[len(s)-i:]) {
				return s[:len(s)-i]
			}
			break
		}
	}
	return s
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

// appendString appends s as a JSON string, without the HTML escapes of encoding/json.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				b = append(append(b, s[start:i]...), "\ufffd"...)
				start = i + 1
			}
			i += size
			continue
		}
		b = append(b, s[start:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		default:
			b = append(b, `\u00`...)
			b = append(b, hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	return append(append(b, s[start:]...), '"')
}
