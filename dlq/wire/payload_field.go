package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Limits of a filter's payload fields.
const (
	maxPayloadFields     = 8
	maxPayloadPath       = 16
	maxPayloadFieldBytes = 1 << 10
)

// PayloadField is a field of a JSON payload and its required value: "customer.id=42". In JSON it is that text.
//
// Arrays on the path and at its end are searched: "items.sku=A-7" selects an order in which one item has it. A payload
// that is not JSON has no fields.
type PayloadField struct {
	// Path are the names on the path to the field, the outermost first.
	Path []string
	// Value is a string, or JSON: 42 matches both the number and the string of these digits, "42" in quotes only the
	// string. Numbers are compared by value, texts exactly.
	Value string
}

// ParsePayloadField reads "customer.id=42". A name with a dot, an equals sign, or a space at either end must be quoted:
// "a.b".c=1. Spaces around the sign and a leading "$." or "." are ignored. The error wraps [ErrInvalid].
func ParsePayloadField(text string) (PayloadField, error) {
	invalid := func(what string) (PayloadField, error) {
		return PayloadField{}, fmt.Errorf("%w: payload field %q: %s: such as customer.id=42", ErrInvalid, text, what)
	}
	rest := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(text), "$"), ".")
	var f PayloadField
	for {
		var name string
		var after byte
		if name, after, rest = cutName(rest); name == "" {
			return invalid("a name is missing")
		}
		f.Path = append(f.Path, name)
		if after == '=' {
			break
		}
		if after != '.' {
			return invalid("the value is missing")
		}
	}
	f.Value = strings.TrimSpace(strings.TrimPrefix(rest, "=")) // accept == for =
	return f, f.validate()
}

// cutName cuts the first name off a path, and returns the byte after it: a dot, an equals sign, or 0 if neither
// follows.
func cutName(path string) (name string, after byte, rest string) {
	path = strings.TrimSpace(path)
	if strings.HasPrefix(path, `"`) {
		if end := strings.IndexByte(path[1:], '"'); end >= 0 {
			name, path = path[1:1+end], strings.TrimSpace(path[2+end:])
			if path != "" && (path[0] == '.' || path[0] == '=') {
				return name, path[0], path[1:]
			}
			return name, 0, ""
		}
	}
	end := strings.IndexAny(path, ".=")
	if end < 0 {
		return path, 0, ""
	}
	return strings.TrimSpace(path[:end]), path[end], path[end+1:]
}

// String is the text that [ParsePayloadField] reads.
func (f PayloadField) String() string {
	names := make([]string, len(f.Path))
	for i, name := range f.Path {
		names[i] = name
		if name == "" || strings.ContainsAny(name, ".=") || strings.TrimSpace(name) != name || i == 0 && name[0] == '$' {
			names[i] = `"` + name + `"`
		}
	}
	value := f.Value
	if strings.HasPrefix(value, "=") || strings.TrimSpace(value) != value {
		value = quoted(value)
	}
	return strings.Join(names, ".") + "=" + value
}

// MarshalText is [PayloadField.String].
func (f PayloadField) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText is [ParsePayloadField].
func (f *PayloadField) UnmarshalText(text []byte) (err error) {
	*f, err = ParsePayloadField(string(text))
	return err
}

// Alternatives are the JSON scalars of which the field must be one: stores compare with these.
func (f PayloadField) Alternatives() []string {
	text := quoted(f.Value)
	if !json.Valid([]byte(f.Value)) || strings.ContainsAny(f.Value[:1], "{[") {
		return []string{text}
	}
	if f.Value[0] == '"' {
		var text string
		_ = json.Unmarshal([]byte(f.Value), &text) // it is valid; half a surrogate, which no database accepts, is replaced
		return []string{quoted(text)}
	}
	return []string{f.Value, text}
}

// quoted is a text as a JSON string.
func quoted(text string) string {
	data, err := json.Marshal(text)
	if err != nil {
		return `""` // cannot happen for a string
	}
	return string(data)
}

func (f PayloadField) validate() error {
	size := len(f.Value)
	for _, name := range f.Path {
		size += len(name)
		if name == "" || !utf8.ValidString(name) ||
			strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == '"' || r == '\\' }) {
			return fmt.Errorf("%w: payload field: the name %q: names must not contain quotes, backslashes and control "+
				"characters", ErrInvalid, name)
		}
	}
	switch {
	case len(f.Path) == 0:
		return fmt.Errorf("%w: payload field: the path is missing: such as customer.id=42", ErrInvalid)
	case len(f.Path) > maxPayloadPath || size > maxPayloadFieldBytes:
		return fmt.Errorf("%w: payload field: at most %d names and %d bytes", ErrInvalid, maxPayloadPath,
			maxPayloadFieldBytes)
	case !utf8.ValidString(f.Value) || strings.ContainsRune(f.Value, 0) || strings.Contains(f.Value, `\u0000`):
		return fmt.Errorf("%w: payload field: the value %q: a text in UTF-8 without NUL", ErrInvalid, f.Value)
	}
	if _, exponent, found := strings.Cut(strings.ToLower(f.Value), "e"); found && len(exponent) > 3 &&
		json.Valid([]byte(f.Value)) && f.Value[0] != '"' &&
		f.Value != "false" {
		return fmt.Errorf("%w: payload field: the number %s is out of range", ErrInvalid, f.Value)
	}
	return nil
}
