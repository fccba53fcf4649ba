package wire

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"time"
	"unicode/utf8"
)

// Text is text that may contain any bytes. In JSON it is a string if the bytes are valid UTF-8, otherwise a list with
// their base64.
type Text string

// MarshalJSON writes a string, or a list with the base64.
func (t Text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal([1]string{base64.StdEncoding.EncodeToString([]byte(t))})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (t *Text) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] != '[' {
		return json.Unmarshal(data, (*string)(t))
	}
	var encoded [1][]byte
	if err := json.Unmarshal(data, &encoded); err != nil {
		return err
	}
	*t = Text(encoded[0])
	return nil
}

// Headers are the headers of a message. In JSON they are an object, or a list of pairs if a name is not valid UTF-8.
type Headers map[string]string

// MarshalJSON writes an object, or a list of pairs in the order of their names.
func (h Headers) MarshalJSON() ([]byte, error) {
	object, pairs := make(map[string]Text, len(h)), make([][2]Text, 0, len(h))
	plain := true
	for _, name := range slices.Sorted(maps.Keys(h)) {
		plain = plain && utf8.ValidString(name)
		object[name] = Text(h[name])
		pairs = append(pairs, [2]Text{Text(name), Text(h[name])})
	}
	if plain {
		return json.Marshal(object)
	}
	return json.Marshal(pairs)
}

// UnmarshalJSON reads an object or a list of pairs.
func (h *Headers) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '[' {
		var pairs [][2]Text
		if err := json.Unmarshal(data, &pairs); err != nil {
			return err
		}
		*h = make(Headers, len(pairs))
		for _, pair := range pairs {
			(*h)[string(pair[0])] = string(pair[1])
		}
		return nil
	}
	var object map[string]Text
	if err := json.Unmarshal(data, &object); err != nil || object == nil {
		return err
	}
	*h = make(Headers, len(object))
	for name, value := range object {
		(*h)[name] = string(value)
	}
	return nil
}

// Seconds is a duration that is a number of seconds in JSON.
type Seconds time.Duration

// SecondsOf is the duration of this many seconds; of too many, the longest one.
func SecondsOf(seconds float64) Seconds {
	longest := math.Nextafter(1<<63, 0) // a conversion of more may have the other sign
	return Seconds(min(max(seconds*float64(time.Second), -longest), longest))
}

// Duration is the duration.
func (s Seconds) Duration() time.Duration { return time.Duration(s) }

// MarshalJSON writes the seconds.
func (s Seconds) MarshalJSON() ([]byte, error) { return json.Marshal(s.Duration().Seconds()) }

// UnmarshalJSON reads the seconds.
func (s *Seconds) UnmarshalJSON(data []byte) error {
	var seconds float64
	err := json.Unmarshal(data, &seconds)
	*s = SecondsOf(seconds)
	return err
}
