package dashboard

import "strings"

// token is a piece of JSON in one colour. Its text is escaped by the template like any other.
type token struct{ Class, Text string }

// tokens splits indented, valid JSON into its tokens.
func tokens(text string) []token {
	var all []token
	add := func(class, piece string) {
		if n := len(all); n > 0 && all[n-1].Class == class {
			all[n-1].Text += piece
			return
		}
		all = append(all, token{class, piece})
	}
	for text != "" {
		switch c := text[0]; {
		case c == '"':
			end := stringEnd(text)
			class := "s"
			if strings.HasPrefix(text[end:], ":") {
				class = "k"
			}
			add(class, text[:end])
			text = text[end:]
		case c == '-' || c >= '0' && c <= '9':
			end := strings.IndexAny(text, ",]}\n ")
			if end < 0 {
				end = len(text)
			}
			add("n", text[:end])
			text = text[end:]
		case c >= 'a' && c <= 'z': // true, false, null
			end := strings.IndexAny(text, ",]}\n ")
			if end < 0 {
				end = len(text)
			}
			add("l", text[:end])
			text = text[end:]
		default:
			end := strings.IndexAny(text[1:], "\"-0123456789tfn") + 1
			if end == 0 {
				end = len(text)
			}
			add("", text[:end])
			text = text[end:]
		}
	}
	return all
}

// stringEnd is the end of the JSON string that text begins with.
func stringEnd(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}
