package envelope

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// entry is one metadata value: a string, or the JSON text of another kind of value.
type entry struct {
	value  string
	isJSON bool
}

// headerEntries returns the metadata of a binary message: all headers that are the user's. A value from a body whose
// name collided with a header has KeyMetadataPrefix in front, and wins.
func headerEntries(md message.Metadata) map[string]entry {
	entries := make(map[string]entry, len(md))
	isJSON := jsonNames(md)
	for key, value := range md {
		if !isReserved(key) {
			if _, prefixed := md[KeyMetadataPrefix+key]; !prefixed {
				entries[key] = newEntry(value, isJSON[key])
			}
		} else if name, ok := strings.CutPrefix(key, KeyMetadataPrefix); ok {
			entries[name] = newEntry(value, isJSON[name])
		}
	}
	return entries
}

// movableEntries returns the metadata that a body can represent exactly. The others stay headers.
func movableEntries(md message.Metadata) map[string]entry {
	entries := make(map[string]entry, len(md))
	isJSON := jsonNames(md)
	for key, value := range md {
		if !isReserved(key) && movableEntry(key, value) {
			entries[key] = newEntry(value, isJSON[key])
		}
	}
	return entries
}

func movableEntry(key, value string) bool { return headerName(key) && utf8.ValidString(value) }

func newEntry(value string, isJSON bool) entry {
	return entry{value, isJSON && value[:min(1, len(value))] != `"` && embeddable([]byte(value))}
}

// entryOf encodes a Go value.
func entryOf(value any) (entry, error) {
	if text, ok := value.(string); ok {
		return entry{value: text}, nil
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return entry{}, err
	}
	if encoded[0] == '"' { // a type whose JSON is a string, such as time.Time
		return entry{value: unquote(encoded[1 : len(encoded)-1])}, nil
	}
	return entry{string(encoded), true}, nil
}

// set writes v as a header of a binary message.
func (v entry) set(md message.Metadata, key string) {
	setEntry(md, key, v.value)
	if v.isJSON {
		names := jsonNames(md)
		if names == nil {
			names = make(map[string]bool, 1)
		}
		names[key] = true
		setJSONNames(md, names)
	}
}

// jsonNames returns the names in the header that lists which metadata are JSON text.
func jsonNames(md message.Metadata) map[string]bool {
	list, ok := md[KeyMetadataJSON]
	if !ok {
		return nil
	}
	var names []string
	if json.Unmarshal([]byte(list), &names) != nil {
		return nil // an unreadable list names nothing
	}
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// setJSONNames writes the list.
func setJSONNames(md message.Metadata, names map[string]bool) {
	delete(md, KeyMetadataJSON)
	if len(names) == 0 {
		return
	}
	list := []byte{'['}
	for i, name := range slices.Sorted(maps.Keys(names)) {
		if i > 0 {
			list = append(list, ',')
		}
		list = appendString(list, name)
	}
	md[KeyMetadataJSON] = string(append(list, ']'))
}

// headerName reports whether a metadata name is valid for a header. AMQP allows 255 bytes; the prefix needs some of
// them.
func headerName(key string) bool {
	return key != "" && len(key) <= maxName-len(KeyMetadataPrefix) && carriable(key) == key
}

// setEntry sets one string in a binary message's metadata.
func setEntry(md message.Metadata, key, value string) {
	names := jsonNames(md)
	if names[key] {
		delete(names, key)
		setJSONNames(md, names)
	}
	if _, prefixed := md[KeyMetadataPrefix+key]; prefixed {
		key = KeyMetadataPrefix + key
	}
	md[key] = value
}

// flattenMetadata turns the body's metadata into headers. One whose name is not valid for a header is left to the
// frame.
func (s *body) flattenMetadata(md message.Metadata) {
	entries := s.entries()
	listed, names := jsonNames(md), make(map[string]bool)
	agree := true
	for key, v := range entries {
		agree = agree && listed[key] == v.isJSON
		if v.isJSON {
			names[key] = true
		}
	}
	if !agree {
		setJSONNames(md, names)
	}
	// Find all collisions before setting the first header.
	target := make(map[string]string, len(entries))
	for key := range entries {
		_, taken := md[key]
		switch {
		case !headerName(key):
		case taken || isReserved(key):
			target[key] = KeyMetadataPrefix + key
		default:
			target[key] = key
		}
	}
	for key, header := range target {
		md[header] = entries[key].value
	}
}

func appendEntries(b []byte, entries map[string]entry) []byte {
	b = append(b, '{')
	for i, key := range slices.Sorted(maps.Keys(entries)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, key), ':')
		if v := entries[key]; v.isJSON {
			b = append(b, v.value...)
		} else {
			b = appendString(b, v.value)
		}
	}
	return append(b, '}')
}

func appendDataMember(b, data []byte) []byte {
	if embeddable(data) {
		return append(append(b, `"data":`...), data...)
	}
	return appendBase64(append(b, `"data_base64":`...), data)
}

func appendBase64(b, data []byte) []byte {
	b = base64.StdEncoding.AppendEncode(append(b, '"'), data)
	return append(b, '"')
}

// embeddable reports whether a JSON body reproduces the data exactly: JSON in UTF-8 without surrounding white space,
// which would be lost in that of the body.
func embeddable(data []byte) bool {
	return len(data) > 0 && data[0] > ' ' && skipValue(data, 0, 1) == len(data) && utf8.Valid(data)
}
