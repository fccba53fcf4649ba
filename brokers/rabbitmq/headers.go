package rabbitmq

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/envelope"
)

// headersToMetadata puts AMQP headers into string metadata. Values of other types are written in a readable form, with
// their AMQP type under envelope.KeyHeaderTypes, from which metadataToHeaders restores the header.
//
// Broker-made headers have no type: they can be read but are never published.
func headersToMetadata(headers amqp.Table, metadata message.Metadata) {
	types := map[string]string{}
	for key, value := range headers {
		if key == envelope.KeyDelay || key == keyRest {
			continue // over: if it stayed, a handler that forwards the message would delay it again
		}
		if text, ok := value.(string); ok {
			metadata[key] = text
			continue
		}
		text, kind := formatField(value)
		metadata[key] = text
		if !envelope.IsBrokerMade(key) {
			types[escapeKey(key)] = kind
		}
	}
	baseFrom(headers, metadata)
	if len(types) > 0 {
		encoded, _ := json.Marshal(types) // a map of strings always encodes
		metadata[envelope.KeyHeaderTypes] = string(encoded)
	}
}

// baseFrom uses the x-delay of a producer in another language as the original delay, the base of the backoff. On a
// message that has failed or waited here, x-delay is ours. The plugin inverts the sign of the header when the time is
// over.
func baseFrom(headers amqp.Table, metadata message.Metadata) {
	delay, asked := integer(headers[envelope.KeyDelay])
	if !asked {
		return
	}
	for _, ours := range []string{
		envelope.KeyOriginalDelay, envelope.KeyRetryCount, envelope.KeyFirstFailure, envelope.KeyDeferredSince,
		envelope.KeyRedriveID, keyRest,
	} {
		if _, has := headers[ours]; has {
			return
		}
	}
	metadata[envelope.KeyOriginalDelay] = strconv.FormatInt(max(delay, -delay), 10)
}

// metadataToHeaders returns the headers of a publication, without those that skip refuses. A value that no longer fits
// its original type, because a handler changed it, is sent as a string.
func metadataToHeaders(metadata message.Metadata, ints []string, skip func(key string) bool) amqp.Table {
	types := headerTypes(metadata)
	headers := make(amqp.Table, len(metadata))
	for key, text := range metadata {
		if key == envelope.KeyHeaderTypes || skip(key) {
			continue
		}
		kind, typed := types[key]
		if !typed && slices.Contains(ints, key) {
			kind = string(kindInt32)
		}
		if value, ok := parseField(text, kind); ok {
			headers[key] = value
		} else {
			headers[key] = text
		}
	}
	return headers
}

func headerTypes(metadata message.Metadata) map[string]string {
	encoded, ok := metadata[envelope.KeyHeaderTypes]
	if !ok {
		return nil
	}
	var types map[string]string
	if json.Unmarshal([]byte(encoded), &types) != nil {
		return nil // another producer's header of this name: every value remains a string
	}
	for escaped, kind := range types {
		if key, ok := unescapeKey(escaped); ok && key != escaped {
			types[key] = kind
		}
	}
	return types
}

// Kinds of fields, by their letters in RabbitMQ's dialect of AMQP 0-9-1. A table is written as the kinds of its values,
// in the order of its sorted keys, in braces; an array as those of its items in square brackets.
const (
	kindBool      = 't'
	kindInt8      = 'b'
	kindUint8     = 'B'
	kindInt16     = 's'
	kindUint16    = 'u'
	kindInt32     = 'I'
	kindUint32    = 'i'
	kindInt64     = 'l'
	kindFloat32   = 'f'
	kindFloat64   = 'd'
	kindDecimal   = 'D'
	kindString    = 'S'
	kindTimestamp = 'T'
	kindBytes     = 'x'
	kindVoid      = 'V'
	kindArray     = 'A' // in AMQP; written as openArray
	kindTable     = 'F' // in AMQP; written as openTable
	kindRaw       = 'R' // a string inside a table or array that JSON cannot represent: base64 there
	openTable     = '{'
	closeTable    = '}'
	openArray     = '['
	closeArray    = ']'
)

// numbers are the kinds of numbers, except for decimals.
var numbers = []struct {
	kind byte
	of   reflect.Type
}{
	{kindInt8, reflect.TypeFor[int8]()},
	{kindUint8, reflect.TypeFor[uint8]()},
	{kindInt16, reflect.TypeFor[int16]()},
	{kindUint16, reflect.TypeFor[uint16]()},
	{kindInt32, reflect.TypeFor[int32]()},
	{kindUint32, reflect.TypeFor[uint32]()},
	{kindInt64, reflect.TypeFor[int64]()},
	{kindFloat32, reflect.TypeFor[float32]()},
	{kindFloat64, reflect.TypeFor[float64]()},
}

// formatField returns the text of a field for metadata and the kind that restores the field from it.
func formatField(value any) (text, kind string) {
	switch v := value.(type) {
	case bool:
		return strconv.FormatBool(v), string(kindBool)
	case string:
		return v, string(kindString)
	case []byte:
		return string(v), string(kindBytes)
	case time.Time:
		return formatTime(v), string(kindTimestamp)
	case amqp.Decimal:
		return formatDecimal(v), string(kindDecimal)
	case amqp.Table, []any:
		tree, kinds := toJSON(value, nil)
		encoded, _ := json.Marshal(tree) // toJSON only returns values that can be encoded
		return string(encoded), string(kinds)
	}
	for _, n := range numbers {
		if reflect.TypeOf(value) == n.of {
			return fmt.Sprint(value), string(n.kind)
		}
	}
	return "", string(kindVoid) // amqp091-go decodes to no other type
}

// parseField is the reverse of formatField. It reports false if text is not a value of that kind.
func parseField(text, kind string) (value any, ok bool) {
	switch {
	case kind == "":
		return nil, false
	case kind[0] == openTable, kind[0] == openArray:
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		var tree any
		if decoder.Decode(&tree) != nil || decoder.More() {
			return nil, false
		}
		value, rest, ok := fromJSON(tree, kind)
		return value, ok && rest == ""
	case len(kind) != 1:
		return nil, false
	}
	switch kind[0] {
	case kindVoid:
		return nil, text == ""
	case kindBool:
		return text == "true", text == "true" || text == "false"
	case kindString:
		return text, true
	case kindBytes:
		return []byte(text), true
	case kindTimestamp:
		return parseTime(text)
	case kindDecimal:
		var v amqp.Decimal
		_, err := fmt.Sscanf(text, "%de-%d", &v.Value, &v.Scale)
		return v, err == nil && formatDecimal(v) == text
	}
	return parseNumber(text, kind[0])
}

func parseNumber(text string, kind byte) (value any, ok bool) {
	for _, n := range numbers {
		if n.kind != kind {
			continue
		}
		number := reflect.New(n.of).Elem()
		var err error
		switch bits := n.of.Bits(); {
		case number.CanInt():
			var v int64
			if v, err = strconv.ParseInt(text, 10, bits); err != nil && kind == kindInt32 {
				v, err = strconv.ParseInt(text, 10, 64) // grown beyond its type, as a handler may count: still a number
				return v, err == nil
			}
			number.SetInt(v)
		case number.CanUint():
			var v uint64
			v, err = strconv.ParseUint(text, 10, bits)
			number.SetUint(v)
		default:
			var v float64
			v, err = strconv.ParseFloat(text, bits)
			number.SetFloat(v)
		}
		return number.Interface(), err == nil
	}
	return nil, false
}

func formatDecimal(v amqp.Decimal) string { return fmt.Sprintf("%de-%d", v.Value, v.Scale) }

// formatTime writes a timestamp, which AMQP counts in seconds, as RFC 3339. That ends with the year 9999; a producer
// that sent milliseconds is far beyond, and its number is kept.
func formatTime(t time.Time) string {
	if year := t.UTC().Year(); year < 0 || year > 9999 {
		return "@" + strconv.FormatInt(t.Unix(), 10)
	}
	return t.UTC().Format(time.RFC3339)
}

func parseTime(text string) (t time.Time, ok bool) {
	if seconds, counted := strings.CutPrefix(text, "@"); counted {
		n, err := strconv.ParseInt(seconds, 10, 64)
		return time.Unix(n, 0).UTC(), err == nil
	}
	t, err := time.Parse(time.RFC3339, text)
	return t.UTC(), err == nil
}

// toJSON converts a field to a tree for encoding/json, and appends the kinds of everything in it to kinds. Numbers and
// plain strings are readable; values that JSON cannot represent become strings.
func toJSON(value any, kinds []byte) (tree any, _ []byte) {
	switch v := value.(type) {
	case amqp.Table:
		kinds = append(kinds, openTable)
		object := make(map[string]any, len(v))
		for key, item := range v {
			object[escapeKey(key)] = item
		}
		for _, key := range slices.Sorted(maps.Keys(object)) {
			object[key], kinds = toJSON(object[key], kinds)
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
			return []byte(v), append(kinds, kindRaw)
		}
		return v, append(kinds, kindString)
	case []byte:
		return v, append(kinds, kindBytes)
	}
	text, kind := formatField(value)
	kinds = append(kinds, kind...)
	if kind[0] == kindTimestamp || kind[0] == kindDecimal || strings.ContainsAny(text, "NI") { // NaN, +Inf, -Inf
		return text, kinds
	}
	return json.Number(text), kinds
}

// fromJSON is the reverse of toJSON and encoding/json. It consumes the kinds of tree from the front of kinds and
// returns the rest.
func fromJSON(tree any, kinds string) (value any, rest string, ok bool) {
	if kinds == "" {
		return nil, "", false
	}
	kind, rest := kinds[0], kinds[1:]
	switch t := tree.(type) {
	case map[string]any:
		if kind == openTable {
			return tableFromJSON(t, rest)
		}
	case []any:
		if kind == openArray {
			return arrayFromJSON(t, rest)
		}
	case nil:
		return nil, rest, kind == kindVoid
	case bool:
		return t, rest, kind == kindBool
	case json.Number:
		value, ok = parseNumber(t.String(), kind)
		return value, rest, ok
	case string:
		switch kind {
		case kindBytes, kindRaw:
			raw, err := base64.StdEncoding.DecodeString(t)
			if kind == kindRaw {
				return string(raw), rest, err == nil
			}
			return raw, rest, err == nil
		case kindString, kindTimestamp, kindDecimal, kindFloat32, kindFloat64:
			value, ok = parseField(t, string(kind))
			return value, rest, ok
		}
	}
	return nil, "", false
}

func tableFromJSON(object map[string]any, kinds string) (value any, rest string, ok bool) {
	table := make(amqp.Table, len(object))
	for _, escaped := range slices.Sorted(maps.Keys(object)) {
		key, ok := unescapeKey(escaped)
		if !ok {
			return nil, "", false
		}
		if table[key], kinds, ok = fromJSON(object[escaped], kinds); !ok {
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
