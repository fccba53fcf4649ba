package redact

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxDepth is the maximum nesting of a payload that is searched; what is deeper is hidden.
const maxDepth = 500

// Payload is the visible part of a payload. What parses as JSON is JSON, whatever its content type; patterns apply to
// the values of its texts and numbers, and then to the document as it is written. If nothing is hidden it returns the
// given slice.
func (r *Rules) Payload(contentType string, payload []byte) []byte {
	if r.Empty() || len(payload) == 0 {
		return payload
	}
	masked, err := r.maskJSON(payload)
	switch {
	case err == nil:
		payload = masked
	case len(r.paths) > 0:
		return hidden("not JSON", contentType)
	}
	if !r.HidesText() {
		return payload
	}
	if !readable(contentType, payload) {
		return hidden("not text in UTF-8", contentType)
	}
	if text := r.Text(string(payload)); text != string(payload) {
		payload = []byte(text)
	}
	return payload
}

// hidden replaces a payload that cannot be searched.
func hidden(why, contentType string) []byte {
	return fmt.Appendf(nil, "%s: %s (%.80s)", Mask, why, cmp.Or(contentType, "no content type"))
}

// readable reports whether bytes are the text that they seem to be. Text in UTF-16 reads as ASCII with NULs between,
// and UTF-7 or EBCDIC as other text.
func readable(contentType string, payload []byte) bool {
	if !utf8.Valid(payload) || bytes.IndexByte(payload, 0) >= 0 {
		return false
	}
	_, parameters, err := mime.ParseMediaType(contentType)
	charset := strings.ToLower(parameters["charset"])
	if err != nil || charset == "" {
		return err == nil || !strings.Contains(strings.ToLower(contentType), "charset")
	}
	return slices.ContainsFunc([]string{"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-", "latin", "windows-125"},
		func(prefix string) bool { return strings.HasPrefix(charset, prefix) })
}

// masker reads a JSON text and records what to replace.
type masker struct {
	rules   *Rules
	decoder *json.Decoder
	text    []byte
	depth   int
	out     bytes.Buffer
	copied  int64 // how much of text is in out
}

// maskJSON replaces the values at the paths and leaves every other byte unchanged.
func (r *Rules) maskJSON(payload []byte) ([]byte, error) {
	m := masker{rules: r, decoder: json.NewDecoder(bytes.NewReader(payload)), text: payload}
	m.decoder.UseNumber()
	at := make([]reached, len(r.paths), 16*len(r.paths)) // with room for most payloads
	for i := range at {
		at[i].path = i
	}
	if err := m.value(at); err != nil {
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

// JSON is the visible part of a value as something that JSON can show: its texts and numbers without what the patterns
// match. Paths do not apply to it.
func (r *Rules) JSON(value any) (any, error) {
	if !r.HidesText() {
		return value, nil
	}
	text, err := marshal(value)
	if err == nil {
		text, err = (&Rules{texts: r.texts}).maskJSON(text)
	}
	return json.RawMessage(text), err
}

// marshal encodes a value without escaping <, > and &: it is no HTML.
func marshal(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// value reads the next value, at whose position these steps are reached.
func (m *masker) value(at []reached) error {
	if m.depth > maxDepth {
		return errors.New("nested too deep")
	}
	m.depth++
	defer func() { m.depth-- }()
	for _, p := range at {
		if p.steps == len(m.rules.paths[p.path]) {
			return m.mask()
		}
	}
	before := m.decoder.InputOffset()
	token, err := m.decoder.Token()
	if err != nil {
		return err
	}
	switch token {
	case json.Delim('{'):
		for m.decoder.More() {
			before := m.decoder.InputOffset()
			name, err := m.decoder.Token()
			if err != nil {
				return err
			}
			text, _ := name.(string) // always a string here
			m.scalar(before, text)
			if err := m.value(m.rules.below(at, element{name: text, index: -1})); err != nil {
				return err
			}
		}
	case json.Delim('['):
		for i := 0; m.decoder.More(); i++ {
			if err := m.value(m.rules.below(at, element{index: i})); err != nil {
				return err
			}
		}
	default:
		switch scalar := token.(type) {
		case string:
			m.scalar(before, scalar)
		case json.Number:
			m.scalar(before, scalar.String())
		}
		return nil
	}
	_, err = m.decoder.Token() // the closing bracket
	return err
}

// scalar hides what the patterns match in a text or number that was just read, between before and the decoder's
// position.
func (m *masker) scalar(before int64, means string) {
	shown := m.rules.Text(means)
	if shown == means {
		return
	}
	end := m.decoder.InputOffset()
	start := before + int64(bytes.IndexAny(m.text[before:end], `"-0123456789`)) // after spaces, commas and colons
	quoted, _ := marshal(shown)                                                 // text can be marshalled
	m.out.Write(m.text[m.copied:start])
	m.out.Write(quoted)
	m.copied = end
}

// mask replaces the next value.
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

// step is one part of a path: a name, an index, or anything; deep matches at any depth below.
type step struct {
	name  string
	index int // -1 when it is a name or anything
	any   bool
	deep  bool
}

// location is a parsed path.
type location []step

// element is a position in a document: a member's name, or an index.
type element struct {
	name  string
	index int // -1 for a member of an object
}

// parsePath reads a path; see the package comment for the syntax.
func parsePath(text string) (location, error) {
	rest, ok := strings.CutPrefix(text, "$")
	if !ok {
		return nil, errors.New("a path begins with $: such as $.card.number or $..iban")
	}
	var steps location
	for rest != "" {
		s := step{index: -1, deep: strings.HasPrefix(rest, "..")}
		if s.deep {
			rest = rest[1:]
		}
		var err error
		switch {
		case s.deep && strings.HasPrefix(rest, ".["):
			rest, err = s.bracket(rest[1:])
		case rest[0] == '.':
			rest, err = s.member(rest[1:])
		case rest[0] == '[':
			rest, err = s.bracket(rest)
		default:
			err = fmt.Errorf("expected . or [ before %q", rest)
		}
		if err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	return steps, nil
}

// member reads name or *.
func (s *step) member(text string) (rest string, err error) {
	end := strings.IndexAny(text, ".[")
	if end < 0 {
		end = len(text)
	}
	s.name, rest = text[:end], text[end:]
	if s.name == "" {
		return "", errors.New("a name is missing after the dot")
	}
	if s.name == "*" {
		s.any = true
	}
	return rest, nil
}

// bracket reads ['name'], ["name"], [0] or [*].
func (s *step) bracket(text string) (rest string, err error) {
	if len(text) > 1 && (text[1] == '\'' || text[1] == '"') {
		name, rest, ok := strings.Cut(text[2:], text[1:2]+"]")
		if !ok {
			return "", fmt.Errorf("the bracket of %q is not closed", text)
		}
		s.name = name
		return rest, nil
	}
	inside, rest, ok := strings.Cut(text[1:], "]")
	if !ok {
		return "", fmt.Errorf("the bracket of %q is not closed", text)
	}
	if inside == "*" {
		s.any = true
		return rest, nil
	}
	if s.index, err = strconv.Atoi(inside); err != nil || s.index < 0 {
		return "", fmt.Errorf("[%s]: an index from 0, a quoted name, or *", inside)
	}
	return rest, nil
}

func (s *step) matches(e element) bool {
	switch {
	case s.any:
		return true
	case s.index >= 0:
		return e.index == s.index
	default:
		return e.index < 0 && e.name == s.name
	}
}

// reached is how many steps of a path match down to a position.
type reached struct{ path, steps int }

// below returns what is reached at the position e below another. A path with .. reaches several steps, each only once,
// so that the work does not grow with the number of ways to match. The result is behind at in its array, for the next
// call to overwrite.
func (r *Rules) below(at []reached, e element) []reached {
	next := at[len(at):]
	for _, now := range at {
		s := &r.paths[now.path][now.steps]
		if s.deep && (len(next) == 0 || next[len(next)-1] != now) {
			next = append(next, now)
		}
		if s.matches(e) {
			next = append(next, reached{now.path, now.steps + 1})
		}
	}
	return next
}
