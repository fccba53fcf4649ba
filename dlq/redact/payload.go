package redact

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// maxDepth is how deep a payload may be nested to be looked into; what is deeper is hidden.
const maxDepth = 500

// Payload is what may be shown of a payload. Its content type is not believed: what reads as JSON is JSON. The slice that comes back
// is the one that was given when nothing is hidden.
func (r *Rules) Payload(contentType string, payload []byte) []byte {
	if r == nil || len(payload) == 0 {
		return payload
	}
	if len(r.paths) > 0 {
		masked, err := r.maskJSON(payload)
		if err != nil {
			return hidden(contentType, payload)
		}
		payload = masked
	}
	if len(r.texts) > 0 && utf8.Valid(payload) {
		if text := r.Text(string(payload)); text != string(payload) {
			payload = []byte(text)
		}
	}
	return payload
}

// hidden stands for a payload that cannot be looked into.
func hidden(contentType string, payload []byte) []byte {
	if contentType == "" {
		contentType = "no content type"
	}
	return fmt.Appendf(nil, "%s: %d bytes that are not JSON (%.80s)", Mask, len(payload), contentType)
}

// masker walks over a JSON text and notes what to replace.
type masker struct {
	rules   *Rules
	decoder *json.Decoder
	text    []byte
	at      []element
	out     bytes.Buffer
	copied  int64 // how far text is in out
}

// maskJSON replaces the values at the paths and leaves every other byte alone.
func (r *Rules) maskJSON(payload []byte) ([]byte, error) {
	m := masker{rules: r, decoder: json.NewDecoder(bytes.NewReader(payload)), text: payload}
	m.decoder.UseNumber()
	if err := m.value(); err != nil {
		return nil, err
	}
	if _, err := m.decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one value")
	}
	if m.copied == 0 {
		return payload, nil
	}
	m.out.Write(payload[m.copied:])
	return m.out.Bytes(), nil
}

// value reads the value that comes next.
func (m *masker) value() error {
	if len(m.at) > maxDepth {
		return errors.New("nested too deep")
	}
	for _, p := range m.rules.paths {
		if p.matches(m.at) {
			return m.mask()
		}
	}
	token, err := m.decoder.Token()
	if err != nil {
		return err
	}
	switch token {
	case json.Delim('{'):
		for m.decoder.More() {
			name, err := m.decoder.Token()
			if err != nil {
				return err
			}
			text, _ := name.(string) // the decoder takes nothing else there
			if err := m.child(element{name: text, index: -1}); err != nil {
				return err
			}
		}
	case json.Delim('['):
		for i := 0; m.decoder.More(); i++ {
			if err := m.child(element{index: i}); err != nil {
				return err
			}
		}
	default:
		return nil
	}
	_, err = m.decoder.Token() // the closing bracket
	return err
}

func (m *masker) child(e element) error {
	m.at = append(m.at, e)
	err := m.value()
	m.at = m.at[:len(m.at)-1]
	return err
}

// mask replaces the value that comes next.
func (m *masker) mask() error {
	var raw json.RawMessage
	if err := m.decoder.Decode(&raw); err != nil {
		return err
	}
	end := m.decoder.InputOffset()
	m.out.Write(m.text[m.copied : end-int64(len(raw))])
	m.out.WriteString(`"` + Mask + `"`)
	m.copied = end
	return nil
}
