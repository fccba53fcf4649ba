package sqlstore

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

// jsonLimits is what the JSON functions of a database can read. A payload beyond it has no projection: one such row
// would fail the whole statement that stores or reads it. The limits are far from where the functions fail.
type jsonLimits struct {
	bytes, depth int
	// number reports whether a number can be read; nil for any.
	number func(string) bool
	// text means that \u0000 and lone surrogates cannot be read.
	text bool
}

// accept reports whether a payload is JSON within the limits.
func (l jsonLimits) accept(payload []byte) bool {
	if len(payload) > l.bytes || !utf8.Valid(payload) || !json.Valid(payload) {
		return false
	}
	var depth, end int
	for i := 0; i < len(payload); i = end {
		end = i + 1
		switch c := payload[i]; {
		case c == '"':
			for ; payload[end] != '"'; end++ {
				if payload[end] == '\\' {
					end++
				}
			}
			end++
			if l.text && !plainText(payload[i:end]) {
				return false
			}
		case c == '-' || c >= '0' && c <= '9':
			for end < len(payload) && bytes.IndexByte([]byte("+-.0123456789eE"), payload[end]) >= 0 {
				end++
			}
			if l.number != nil && !l.number(string(payload[i:end])) {
				return false
			}
		case c == '{' || c == '[':
			if depth++; depth > l.depth {
				return false
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return true
}

// plainText reports whether a JSON string has neither \u0000 nor a lone surrogate, which decodes as U+FFFD.
func plainText(quoted []byte) bool {
	if !bytes.Contains(quoted, []byte(`\u`)) {
		return true
	}
	var text string
	return json.Unmarshal(quoted, &text) == nil && !strings.ContainsAny(text, "\x00\uFFFD")
}

// plainNumber accepts numbers with few digits and small exponents, which PostgreSQL's NUMERIC can hold.
func plainNumber(number string) bool {
	_, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	return len(number) <= 1000 && len(strings.TrimLeft(exponent, "+-0")) <= 3
}

// doubleNumber accepts numbers that MySQL reads as doubles, which have up to 308 digits before the point. Like MySQL,
// which rejects 0e999, it looks at how the number is written.
func doubleNumber(number string) bool {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	integer, _, _ := strings.Cut(strings.TrimPrefix(mantissa, "-"), ".")
	power, _ := strconv.Atoi(exponent)
	return plainNumber(number) && len(integer)+max(power, 0) <= 300
}
