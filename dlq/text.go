package dlq

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Bounds of the text columns, in bytes. What is cut ends in a mark that says how much is missing; the headers keep all of it.
const (
	maxErrorText = 8 << 10
	maxTrace     = 32 << 10
	maxName      = 1 << 10
)

// clean makes text fit for a text column of any database: valid UTF-8, no NUL (shown as \0), at most limit bytes.
func clean(text string, limit int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.ReplaceAll(text, "\x00", `\0`)
	if len(text) <= limit {
		return text
	}
	mark := fmt.Sprintf("… [%d bytes in all]", len(text))
	cut := limit - len(mark)
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + mark
}
