package rabbitmq

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	amqp "github.com/rabbitmq/amqp091-go"
)

// toJSON converts a field to a tree for encoding/json, and appends the kinds of everything in it to kinds. Numbers and
// plain strings are readable; values that JSON cannot represent become strings.
func toJSON(value any, kinds []byte) (tree any, _ []byte) {
	switch v := value.(type) {
	case amqp.Table:
		kinds = append(kinds, openTable)
		object := make(map[string]any, len(v))
		for _, key := range sortedKeys(v) {
			object[escapeKey(key)], kinds = toJSON(v[key], kinds)
		}
		return object, append(kinds, closeTable)
	case []any:
		kinds = append(kinds, openArray)
		list := make([]any, len(v))
		for i, item := range v {
			list[i], kinds = toJSON(item, kinds)
		}
		return list, append(kinds, closeArray)
	case nil:
		return nil, append(kinds, kindVoid)
	case bool:
		return v, append(kinds, kindBool)
	case string:
		if !utf8.ValidString(v) {
			return base64.StdEncoding.EncodeToString([]byte(v)), append(kinds, kindRaw)
		}
		return v, append(kinds, kindString)
	case []byte:
		return base64.StdEncoding.EncodeToString(v), append(kinds, kindBytes)
	}
	text, kind := formatField(value)
	kinds = append(kinds, kind...)
	switch kind[0] {
	case kindTimestamp, kindDecimal:
		return text, kinds
	case kindFloat32, kindFloat64:
		if strings.ContainsAny(text, "NI") { // NaN, +Inf, -Inf
			return text, kinds
		}
	}
	return json.Number(text), kinds
}

// parseTree is the reverse of toJSON and json.Marshal.
func parseTree(text, kind string) (value any, ok bool) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var tree any
	if decoder.Decode(&tree) != nil || decoder.More() {
		return nil, false
	}
	value, rest, ok := fromJSON(tree, kind)
	return value, ok && rest == ""
}

// fromJSON consumes the kinds of tree from the front of kinds and returns the rest.
func fromJSON(tree any, kinds string) (value any, rest string, ok bool) {
	if kinds == "" {
		return nil, "", false
	}
	kind, rest := kinds[0], kinds[1:]
	switch t := tree.(type) {
	case map[string]any:
		if kind != openTable {
			return nil, "", false
		}
		return tableFromJSON(t, rest)
	case []any:
		if kind != openArray {
			return nil, "", false
		}
		return arrayFromJSON(t, rest)
	case nil:
		return nil, rest, kind == kindVoid
	case bool:
		return t, rest, kind == kindBool
	case json.Number:
		value, ok := parseNumber(t.String(), kind)
		return value, rest, ok && kind != kindDecimal
	case string:
		value, ok := stringFromJSON(t, kind)
		return value, rest, ok
	}
	return nil, "", false
}

func tableFromJSON(object map[string]any, kinds string) (value any, rest string, ok bool) {
	keys := make(map[string]string, len(object)) // by their form before escapeKey, which determines the order of kinds
	for escaped := range object {
		key, ok := unescapeKey(escaped)
		if !ok {
			return nil, "", false
		}
		keys[key] = escaped
	}
	table := make(amqp.Table, len(object))
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if table[key], kinds, ok = fromJSON(object[keys[key]], kinds); !ok {
			return nil, "", false
		}
	}
	rest, ok = strings.CutPrefix(kinds, string(closeTable))
	return table, rest, ok
}

func arrayFromJSON(list []any, kinds string) (value any, rest string, ok bool) {
	array := make([]any, len(list))
	for i, item := range list {
		if array[i], kinds, ok = fromJSON(item, kinds); !ok {
			return nil, "", false
		}
	}
	rest, ok = strings.CutPrefix(kinds, string(closeArray))
	return array, rest, ok
}

func stringFromJSON(text string, kind byte) (value any, ok bool) {
	switch kind {
	case kindString:
		return text, true
	case kindBytes, kindRaw:
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return nil, false
		}
		if kind == kindRaw {
			return string(raw), true
		}
		return raw, true
	case kindTimestamp, kindDecimal, kindFloat32, kindFloat64:
		return parseField(text, string(kind))
	}
	return nil, false
}

// encoding/json would change keys that are not valid UTF-8: they are written as base64 after a prefix.
const rawKeyMark = "\x00raw:"

func escapeKey(key string) string {
	if utf8.ValidString(key) && !strings.HasPrefix(key, rawKeyMark) {
		return key
	}
	return rawKeyMark + base64.StdEncoding.EncodeToString([]byte(key))
}

func unescapeKey(key string) (string, bool) {
	encoded, marked := strings.CutPrefix(key, rawKeyMark)
	if !marked {
		return key, true
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	return string(raw), err == nil
}

// parseDecimal reads the form <value>e-<scale>.
func parseDecimal(text string) (value any, ok bool) {
	digits, exponent, found := strings.Cut(text, "e-")
	if !found {
		return nil, false
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil {
		return nil, false
	}
	scale, err := strconv.ParseUint(exponent, 10, 8)
	if err != nil {
		return nil, false
	}
	return amqp.Decimal{Scale: uint8(scale), Value: int32(n)}, true
}
