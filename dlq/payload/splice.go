package payload

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"

	"github.com/itchyny/gojq"
)

// spliceJSON writes value as JSON, with the original's bytes wherever it has the same value in the same place.
func spliceJSON(original []byte, value any) ([]byte, error) {
	trimmed := bytes.TrimLeft(original, " \t\r\n")
	lead := original[:len(original)-len(trimmed)]
	body := bytes.TrimRight(trimmed, " \t\r\n")
	was, err := decodeJSON(body)
	if err != nil {
		return nil, fmt.Errorf("splice: %w", err)
	}
	out, err := spliceValue(slices.Clone(lead), body, was, value, 0)
	if err != nil {
		return nil, err
	}
	return append(out, trimmed[len(body):]...), nil
}

// maxSpliceDepth limits the work: each level reads the levels below it again. Deeper changes are rewritten.
const maxSpliceDepth = 64

func spliceValue(out []byte, raw json.RawMessage, was, value any, depth int) ([]byte, error) {
	if sameJSON(was, value) {
		return append(out, raw...), nil
	}
	if depth < maxSpliceDepth {
		switch value := value.(type) {
		case map[string]any:
			if was, ok := was.(map[string]any); ok {
				return spliceObject(out, raw, was, value, depth+1)
			}
		case []any:
			if was, ok := was.([]any); ok {
				return spliceArray(out, raw, was, value, depth+1)
			}
		}
	}
	return appendJSON(out, value)
}

// sameJSON reports whether two values are written the same. gojq's own comparison considers 9007199254740993 equal to
// 9007199254740992.0.
func sameJSON(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && maps.EqualFunc(a, b, sameJSON)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, sameJSON)
	case json.Number:
		switch b.(type) {
		case json.Number, int, float64, *big.Int:
			written, err := gojq.Marshal(b)
			return err == nil && string(written) == a.String()
		}
		return false
	default: // nil, bool, string
		switch b.(type) {
		case nil, bool, string:
			return a == b
		}
		return false
	}
}

// spliceObject keeps the remaining members in their order, and appends new ones.
func spliceObject(out []byte, raw json.RawMessage, was, value map[string]any, depth int) ([]byte, error) {
	members, tail, err := rawMembers(raw)
	if err != nil {
		return nil, err
	}
	out = append(out, '{')
	start := len(out)
	next := func() {
		if len(out) > start {
			out = append(out, ',')
		}
	}
	last := make(map[string]int, len(members))
	for i, m := range members {
		last[m.key] = i
	}
	for i, m := range members {
		now, there := value[m.key]
		if !there || last[m.key] != i { // of a duplicate key the last one counts, for gojq and for most readers
			continue
		}
		next()
		out = append(out, m.name...)
		if out, err = spliceValue(out, m.value, was[m.key], now, depth); err != nil {
			return nil, err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(value)) {
		if _, written := last[key]; written {
			continue
		}
		next()
		if out, err = appendJSON(out, key); err != nil {
			return nil, err
		}
		out = append(out, ':')
		if out, err = appendJSON(out, value[key]); err != nil {
			return nil, err
		}
	}
	return append(out, tail...), nil
}

func spliceArray(out []byte, raw json.RawMessage, was, value []any, depth int) ([]byte, error) {
	var elements []json.RawMessage
	if err := json.Unmarshal(raw, &elements); err != nil {
		return nil, fmt.Errorf("splice: %w", err)
	}
	out = append(out, '[')
	for i, now := range value {
		if i > 0 {
			out = append(out, ',')
		}
		var err error
		if i < len(elements) && i < len(was) {
			out, err = spliceValue(out, elements[i], was[i], now, depth)
		} else {
			out, err = appendJSON(out, now)
		}
		if err != nil {
			return nil, err
		}
	}
	return append(out, ']'), nil
}

// rawMember is a member of an object: its key, the key as it is written with the colon and the space around it, and the
// value.
type rawMember struct {
	key   string
	name  []byte
	value json.RawMessage
}

// rawMembers splits an object into its members and its end, the closing brace with the space before it.
func rawMembers(raw json.RawMessage) (members []rawMember, tail []byte, err error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if _, err := decoder.Token(); err != nil {
		return nil, nil, fmt.Errorf("splice: %w", err)
	}
	start := decoder.InputOffset() // More moves it over white space
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, nil, fmt.Errorf("splice: %w", err)
		}
		m := rawMember{key: token.(string)} //nolint:forcetypeassert // the keys of valid JSON are strings
		if err := decoder.Decode(&m.value); err != nil {
			return nil, nil, fmt.Errorf("splice: %w", err)
		}
		end := decoder.InputOffset() - int64(len(m.value))
		m.name = bytes.Replace(raw[start:end], []byte(","), nil, 1) // the one before the key, if any, which is rewritten
		if start == 1 {
			m.name = raw[start:end]
		}
		members = append(members, m)
		start = decoder.InputOffset()
	}
	return members, raw[start:], nil
}

// appendJSON writes a value of gojq, without the escapes for HTML.
func appendJSON(out []byte, value any) ([]byte, error) {
	data, err := gojq.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("splice: %w", err)
	}
	return append(out, data...), nil
}

// lines around a change
