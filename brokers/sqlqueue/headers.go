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

// encodeHeaders returns the text for the headers column: a JSON object of strings, so that an operator can read and
// filter it with the database's own JSON functions. If one of them is not valid UTF-8, which JSON would alter, all are
// under binaryKey.
func encodeHeaders(headers message.Metadata) string {
	for k, v := range headers {
		if k == binaryKey || !utf8.ValidString(k) || !utf8.ValidString(v) {
			return encodeBinaryHeaders(headers)
		}
	}
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(map[string]string(headers)) // a map of strings always encodes
	return strings.TrimSuffix(text.String(), "\n")
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
	if json.Unmarshal([]byte(text), &headers) == nil {
		return nil // as in nearly every row
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
