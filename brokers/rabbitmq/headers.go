package rabbitmq

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/redrive-go/redrive/envelope"
)

// headersToMetadata puts AMQP headers into string metadata. Values of other types are written in a readable form, with
// their AMQP type under envelope.KeyHeaderTypes, from which metadataToHeaders restores the header.
//
// Broker-made headers have no type: they can be read but are never published.
func headersToMetadata(headers amqp.Table, metadata message.Metadata) {
	var types map[string]string
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
		if envelope.IsBrokerMade(key) {
			continue
		}
		if types == nil {
			types = map[string]string{}
		}
		types[escapeKey(key)] = kind
	}
	baseFrom(headers, metadata)
	if types != nil {
		encoded, err := json.Marshal(types)
		if err == nil { // a map of strings always encodes
			metadata[envelope.KeyHeaderTypes] = string(encoded)
		}
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
			kind, typed = string(kindInt32), true
		}
		if !typed {
			headers[key] = text
			continue
		}
		value, ok := parseField(text, kind)
		if !ok {
			value = text
		}
		headers[key] = value
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
	kindArray     = 'A' // never written: see openArray
	kindTable     = 'F' // likewise
	kindRaw       = 'R' // a string inside a table or array that JSON cannot represent: base64 there
	openTable     = '{'
	closeTable    = '}'
	openArray     = '['
	closeArray    = ']'
)

// formatField returns the text of a field for metadata and the kind that restores the field from it.
func formatField(value any) (text, kind string) {
	switch v := value.(type) {
	case nil:
		return "", string(kindVoid)
	case bool:
		return strconv.FormatBool(v), string(kindBool)
	case string:
		return v, string(kindString)
	case []byte:
		return string(v), string(kindBytes)
	case time.Time:
		return formatTime(v), string(kindTimestamp)
	case amqp.Table, []any:
		tree, kinds := toJSON(value, nil)
		encoded, err := json.Marshal(tree)
		if err != nil {
			return "", string(kindVoid) // toJSON only returns values that can be encoded
		}
		return string(encoded), string(kinds)
	}
	return formatNumber(value)
}

type numberKind struct {
	kind byte
	of   reflect.Type
}

// numbers are the kinds of numbers, except for decimals.
var numbers = []numberKind{
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

func formatNumber(value any) (text, kind string) {
	if v, ok := value.(amqp.Decimal); ok {
		return strconv.FormatInt(int64(v.Value), 10) + "e-" + strconv.Itoa(int(v.Scale)), string(kindDecimal)
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
	if kind == "" {
		return nil, false
	}
	switch kind[0] {
	case openTable, openArray:
		return parseTree(text, kind)
	}
	if len(kind) != 1 {
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
	}
	return parseNumber(text, kind[0])
}

func parseNumber(text string, kind byte) (value any, ok bool) {
	if kind == kindDecimal {
		return parseDecimal(text)
	}
	i := slices.IndexFunc(numbers, func(n numberKind) bool { return n.kind == kind })
	if i < 0 {
		return nil, false
	}
	number := reflect.New(numbers[i].of).Elem()
	var err error
	switch bits := number.Type().Bits(); {
	case number.CanInt():
		var n int64
		if n, err = strconv.ParseInt(text, 10, bits); err != nil && kind == kindInt32 {
			n, err = strconv.ParseInt(text, 10, 64) // grown beyond its type, as a handler may count: still a number
			return n, err == nil
		}
		number.SetInt(n)
	case number.CanUint():
		var n uint64
		n, err = strconv.ParseUint(text, 10, bits)
		number.SetUint(n)
	default:
		var f float64
		f, err = strconv.ParseFloat(text, bits)
		number.SetFloat(f)
	}
	return number.Interface(), err == nil
}

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

func sortedKeys(t amqp.Table) []string { return slices.Sorted(maps.Keys(t)) }
