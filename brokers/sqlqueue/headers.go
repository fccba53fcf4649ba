package sqlqueue

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// binaryKey marks headers that no JSON string can represent. Its value is an array of all pairs, in base64.
const binaryKey = "$binary"

const hexDigits = "0123456789abcdef"

// encodeHeaders returns the text for the headers column: a JSON object of strings, so that an operator can read and
// filter it with the database's own JSON functions. If one of them is not valid UTF-8, which JSON would alter, all are
// under binaryKey.
func encodeHeaders(headers message.Metadata) string {
	size := 2
	for k, v := range headers {
		if k == binaryKey || !utf8.ValidString(k) || !utf8.ValidString(v) {
			return encodeBinaryHeaders(headers)
		}
		size += len(k) + len(v) + 6
	}
	b := make([]byte, 0, size)
	b = append(b, '{')
	for k, v := range headers {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = appendJSONString(b, k)
		b = append(b, ':')
		b = appendJSONString(b, v)
	}
	return string(append(b, '}'))
}

func appendJSONString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		if c < ' ' {
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
		} else {
			b = append(b, '\\', c)
		}
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

func encodeBinaryHeaders(headers message.Metadata) string {
	pairs := make([][2][]byte, 0, len(headers))
	for k, v := range headers {
		pairs = append(pairs, [2][]byte{[]byte(k), []byte(v)})
	}
	b, _ := json.Marshal(map[string]any{binaryKey: pairs}) // bytes cannot fail
	return string(b)
}

// decodeHeaders reads the output of encodeHeaders, and any other JSON object: values that are not strings, which a
// foreign INSERT may contain, become their JSON text. headers is initially empty.
func decodeHeaders(text string, headers message.Metadata) error {
	if decodePlain(text, headers) {
		return nil
	}
	clear(headers)
	if strings.TrimSpace(text) == "" {
		return nil
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &values); err != nil {
		return fmt.Errorf("headers are not a JSON object: %w", err)
	}
	if packed, ok := values[binaryKey]; ok && len(values) == 1 {
		var pairs [][2][]byte
		if err := json.Unmarshal(packed, &pairs); err != nil {
			return fmt.Errorf("headers under %s: %w", binaryKey, err)
		}
		for _, pair := range pairs {
			headers[string(pair[0])] = string(pair[1])
		}
		return nil
	}
	for k, raw := range values {
		var s string
		if json.Unmarshal(raw, &s) != nil {
			s = string(raw)
		}
		headers[k] = s
	}
	return nil
}

// decodePlain reads a JSON object of strings without escapes and spaces, as in nearly every row. It reports whether
// text was one. encoding/json takes six times as long.
func decodePlain(text string, into message.Metadata) bool {
	if text == "{}" {
		return true
	}
	if len(text) < 2 || text[0] != '{' || text[len(text)-1] != '}' || strings.IndexByte(text, '\\') >= 0 {
		return false
	}
	rest := text[1 : len(text)-1]
	for {
		k, after, ok := cutQuoted(rest)
		if !ok || !strings.HasPrefix(after, ":") {
			return false
		}
		v, after, ok := cutQuoted(after[1:])
		if !ok {
			return false
		}
		into[k] = v
		if after == "" {
			return true
		}
		if after[0] != ',' {
			return false
		}
		rest = after[1:]
	}
}

func cutQuoted(s string) (quoted, after string, ok bool) {
	if s == "" || s[0] != '"' {
		return "", "", false
	}
	end := strings.IndexByte(s[1:], '"')
	if end < 0 {
		return "", "", false
	}
	return s[1 : end+1], s[end+2:], true
}
