// Package text makes texts fit for the columns of any database.
package text

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Bounds of the text columns, in bytes. What is cut ends in a mark with the number of missing bytes; the headers keep
// all of it.
const (
	MaxError = 8 << 10
	MaxTrace = 32 << 10
	MaxName  = 1 << 10
)

// Clean makes text fit for a text column of any database: valid UTF-8, no NUL (shown as \0), at most limit bytes.
func Clean(text string, limit int) string {
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
