package sqlstore

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq/wire"
)

// hasField is a jsonpath, whose lax mode searches arrays. An index as in the package's documentation supports it.
func (postgres) hasField(f wire.PayloadField, parameter func(any) string) string {
	var path strings.Builder
	path.WriteString("$")
	for _, name := range f.Path {
		path.WriteString("." + quote(name))
	}
	alternatives := f.Alternatives()
	for i, value := range alternatives {
		alternatives[i] = "@ == " + value
	}
	path.WriteString(" ? (" + strings.Join(alternatives, " || ") + ")")
	return "b.payload_json @? CAST(" + parameter(path.String()) + " AS jsonpath)"
}

// hasField compares with objects that only have the field: JSON_CONTAINS searches arrays anyway.
func (mysql) hasField(f wire.PayloadField, parameter func(any) string) string {
	var before, after strings.Builder
	for _, name := range f.Path {
		before.WriteString("{" + quote(name) + ":")
		after.WriteString("}")
	}
	var conditions []string
	for _, value := range f.Alternatives() {
		for _, spelling := range spellings(value) {
			conditions = append(conditions, "JSON_CONTAINS(CASE WHEN b.payload_json = 1 THEN CONVERT(b.payload USING utf8mb4) "+
				"COLLATE utf8mb4_bin END, "+
				parameter(before.String()+spelling+after.String())+")")
		}
	}
	return "(" + strings.Join(conditions, " OR ") + ")"
}

// spellings are the ways in which common JSON encoders write a scalar: MariaDB 10.11 compares strings as they are
// written, and does not find "4\u00e9" for "4é". They are the plain one, PHP's with and without its flags, Python's and
// Go's.
func spellings(value string) []string {
	var text string
	if json.Unmarshal([]byte(value), &text) != nil || value[0] != '"' {
		return []string{value}
	}
	var plain strings.Builder
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // cannot fail for a string
	var ascii strings.Builder
	written := strings.TrimSpace(plain.String())
	for _, r := range written {
		switch high, low := utf16.EncodeRune(r); {
		case r < utf8.RuneSelf:
			ascii.WriteRune(r)
		case high != utf8.RuneError:
			fmt.Fprintf(&ascii, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&ascii, `\u%04x`, r)
		}
	}
	slashes := strings.NewReplacer("/", `\/`)
	all := []string{written, slashes.Replace(written), ascii.String(), slashes.Replace(ascii.String()), value}
	slices.Sort(all)
	return slices.Compact(all)
}

// hasField reads the field by its path. Where there is an array on the path, it descends name by name: a value that is
// not an array is wrapped in one, so that each step is over the elements of an array. That takes five times as long.
func (sqlite) hasField(f wire.PayloadField, parameter func(any) string) string {
	inArray := func(kind, value string) string {
		return "json_each(CASE WHEN " + kind + " = 'array' THEN " + value + " ELSE '[' || (" + value + ") || ']' END) f"
	}
	payload := "(CASE WHEN b.payload_json = 1 THEN CAST(b.payload AS TEXT) END)"
	path := []string{"$"}
	at := func() string { return payload + ", " + parameter(strings.Join(path, ".")) }
	arrays := []string{"json_type(" + at() + ") = 'array'"}
	from := []string{inArray("json_type("+payload+")", payload) + "0"}
	for i, name := range f.Path {
		// Only for an object: a string is not JSON here, and reading it as such would fail the statement.
		object := fmt.Sprintf("(CASE WHEN f%d.type = 'object' THEN f%[1]d.value ELSE '{}' END)", i)
		step := parameter("$." + quote(name))
		from = append(from, inArray("json_type("+object+", "+step+")", object+" -> "+step)+strconv.Itoa(i+1))
		path = append(path, quote(name))
		arrays = append(arrays, "json_type("+at()+") = 'array'")
	}
	leaf := "f" + strconv.Itoa(len(f.Path))
	return "(" + isOneOf(f, "json_type("+at()+")", "json_extract("+at()+")", parameter) + " OR (" +
		strings.Join(arrays, " OR ") + ") AND EXISTS (SELECT 1 FROM " + strings.Join(from, ", ") + " WHERE " +
		isOneOf(f, leaf+".type", leaf+".atom", parameter) + "))"
}

// isOneOf is a condition that a value with this type, in SQLite, is one of those that the field may have.
func isOneOf(f wire.PayloadField, kind, atom string, parameter func(any) string) string {
	var conditions []string
	for _, value := range f.Alternatives() {
		switch value[0] {
		case 't', 'f', 'n':
			conditions = append(conditions, kind+" = '"+value+"'")
		case '"':
			var text string
			_ = json.Unmarshal([]byte(value), &text) // a JSON string
			conditions = append(conditions, kind+" = 'text' AND "+atom+" = "+parameter(text))
		default:
			conditions = append(conditions, kind+" IN ('integer', 'real') AND "+atom+" = "+parameter(number(value)))
		}
	}
	return "(" + strings.Join(conditions, " OR ") + ")"
}

// number is a JSON number as SQLite reads it.
func number(text string) any {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	n, _ := strconv.ParseFloat(text, 64) // too large is infinite, which no JSON number is
	return n
}

// quote returns a name as a JSON string. It has no quotes and no control characters: see [wire.ParsePayloadField].
func quote(name string) string { return `"` + name + `"` }
