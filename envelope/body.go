package envelope

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// body is a structured body with the positions of its members. If a member occurs twice the last one counts, as with
// encoding/json; nothing is decoded before it is needed.
type body struct {
	raw []byte

	id, timestamp, version, source, queue span
	data, data64                          span
	metadata, err, retry                  span

	end int // where a missing member is inserted: behind the last one
}

// bom is the byte order mark that some producers put in front of JSON.
const bom = "\xef\xbb\xbf"

// scan finds the members. It reports false when raw is not one complete JSON object, and keeps what it found until
// then.
func (s *body) scan(raw []byte) bool {
	*s = body{raw: raw}
	start := 0
	if len(raw) >= len(bom) && string(raw[:len(bom)]) == bom {
		start = len(bom)
	}
	o, ok := openObject(raw, start)
	if !ok {
		return false
	}
	for {
		key, value, ok := o.next()
		if !ok {
			break
		}
		if place := s.member(key.of(raw)); place != nil {
			*place = value
		}
	}
	s.end = o.last
	return o.done && skipSpace(raw, o.pos) == len(raw)
}

func (s *body) member(key []byte) *span {
	switch string(key) {
	case "message_id":
		return &s.id
	case "timestamp":
		return &s.timestamp
	case "version":
		return &s.version
	case "source":
		return &s.source
	case "queue":
		return &s.queue
	case "data":
		return &s.data
	case "data_base64":
		return &s.data64
	case "metadata":
		return &s.metadata
	case "error":
		return &s.err
	case "retry_count":
		return &s.retry
	}
	if bytes.IndexByte(key, '\\') >= 0 {
		if plain := unquote(key); bytes.IndexByte([]byte(plain), '\\') < 0 {
			return s.member([]byte(plain))
		}
	}
	return nil
}

// claims reports whether the body presents itself as an envelope: a whole object with data and the five names that
// every envelope has, or an object that ends early or breaks the syntax after those five. The retry count is not
// required: some producers leave it out of a new message.
func (s *body) claims(whole bool) bool {
	named := s.id.ok() && s.timestamp.ok() && s.version.ok() && s.source.ok() && s.queue.ok()
	return named && (!whole || s.data.ok() || s.data64.ok())
}

// maybeStructured is the cheap test that keeps most payloads from being scanned.
func maybeStructured(payload []byte) bool {
	i := 0
	if len(payload) > 0 && payload[0] == bom[0] {
		i = min(len(bom), len(payload))
	}
	i = skipSpace(payload, i)
	if i >= len(payload) || payload[i] != '{' {
		return false
	}
	const first = `"message_id"` // where our own envelopes and those of most producers begin
	if i = skipSpace(payload, i+1); len(payload)-i > len(first) && string(payload[i:i+len(first)]) == first {
		return true
	}
	return bytes.Contains(payload, []byte(`message_id"`)) && bytes.Contains(payload, []byte(`"queue"`))
}

// read determines the message's mode and, if it is structured, where the members of its body are.
func (s *body) read(m *message.Message) (Mode, error) {
	if declaredBinary(m.Metadata) {
		return Binary, nil
	}
	declared := isStructuredType(m.Metadata[KeyContentType]) || isStructuredType(m.Metadata[KeyAMQPContentType])
	if !declared && !maybeStructured(m.Payload) {
		return Binary, nil
	}
	whole := s.scan(m.Payload)
	if !declared && !s.claims(whole) {
		return Binary, nil
	}
	if err := s.check(whole); err != nil {
		return Structured, err
	}
	return Structured, nil
}

// declaredBinary reports whether a header declares the payload as data, whatever it looks like.
func declaredBinary(md message.Metadata) bool { return md[KeyVersion] != "" }

// isStructuredType reports whether a content type is ours, with or without parameters.
func isStructuredType(contentType string) bool {
	const n = len(ContentType)
	return len(contentType) >= n && strings.EqualFold(contentType[:n], ContentType) &&
		(len(contentType) == n || contentType[n] == ';' || contentType[n] == ' ')
}

// check reports why a body that claims to be an envelope cannot be read as one.
func (s *body) check(whole bool) error {
	if !whole {
		return fmt.Errorf("%w: not one complete JSON object of at most %d levels; the bytes are kept as they are",
			ErrMalformed, maxDepth)
	}
	for _, f := range [...]struct {
		name string
		at   span
	}{{"message_id", s.id}, {"timestamp", s.timestamp}, {"version", s.version}, {"source", s.source}, {"queue", s.queue}} {
		if f.at.ok() && !s.isNull(f.at) && s.raw[f.at.start] != '"' {
			return fmt.Errorf("%w: %s must be a string", ErrMalformed, f.name)
		}
	}
	switch {
	case !s.id.ok():
		return fmt.Errorf("%w: message_id is missing", ErrMalformed)
	case s.data.ok() == s.data64.ok():
		return fmt.Errorf("%w: one of data and data_base64 is needed", ErrMalformed)
	case s.data64.ok() && s.raw[s.data64.start] != '"':
		return fmt.Errorf("%w: data_base64 must be a string", ErrMalformed)
	case s.metadata.ok() && !s.isNull(s.metadata) && s.raw[s.metadata.start] != '{' && !s.isEmptyArray(s.metadata):
		return fmt.Errorf("%w: metadata must be an object", ErrMalformed)
	}
	_, err := s.payload()
	return err
}

func (s *body) isNull(at span) bool { return string(at.of(s.raw)) == "null" }

// isEmptyArray is true for [], which is how PHP writes an empty map.
func (s *body) isEmptyArray(at span) bool {
	return s.raw[at.start] == '[' && skipSpace(s.raw, at.start+1) == at.end-1
}

// text decodes a string member; a missing one and null are "".
func (s *body) text(at span) string {
	if !at.ok() || s.raw[at.start] != '"' {
		return ""
	}
	return unquote(s.raw[at.start+1 : at.end-1])
}

// retryCount reads the counter. It may also be a string of digits, since some producers write all numbers that way.
func (s *body) retryCount() (n int, valid bool) {
	if !s.retry.ok() || s.isNull(s.retry) {
		return 0, true
	}
	return parseCount(s.retryText())
}

// retryText returns the counter as written, without the quotes of a string.
func (s *body) retryText() string {
	if s.raw[s.retry.start] == '"' {
		return s.text(s.retry)
	}
	return string(s.retry.of(s.raw))
}

// lastError reads the error member, nil for null. A producer's string or other value is taken as the message.
func (s *body) lastError() *Error {
	if !s.err.ok() || s.isNull(s.err) {
		return nil
	}
	if s.raw[s.err.start] != '{' {
		return &Error{Message: s.plain(s.err)}
	}
	var e Error
	for key, value := range members(s.raw, s.err.start) {
		switch unquote(key) {
		case "message":
			e.Message = s.plain(value)
		case "code":
			e.Code = s.plain(value)
		case "trace":
			e.Trace = s.plain(value)
		}
	}
	return &e
}

// plain returns a string decoded, null as "" and any other value as its JSON text.
func (s *body) plain(at span) string {
	switch s.raw[at.start] {
	case '"':
		return s.text(at)
	case 'n':
		return ""
	}
	return strings.ToValidUTF8(string(at.of(s.raw)), string(utf8.RuneError))
}

// payload returns the data: the JSON text of the body, or the decoded bytes of data_base64.
func (s *body) payload() ([]byte, error) {
	if !s.data64.ok() {
		return s.data.of(s.raw), nil
	}
	data, err := base64.StdEncoding.Strict().DecodeString(s.text(s.data64))
	if err != nil {
		return nil, fmt.Errorf("%w: data_base64: %w", ErrMalformed, err)
	}
	return data, nil
}

func (s *body) metadataText() map[string]string {
	md := make(map[string]string)
	if s.metadata.ok() {
		for key, value := range members(s.raw, s.metadata.start) {
			md[unquote(key)] = s.plain(value)
		}
	}
	return md
}

// edit replaces the bytes of a span; with an empty span at the end of the members it inserts.
type edit struct {
	at   span
	text []byte
}

// set returns the edit that gives a member a new value.
func (s *body) set(at span, name string, value []byte) edit {
	if at.ok() {
		return edit{at, value}
	}
	text := make([]byte, 0, len(name)+len(value)+4)
	text = strconv.AppendQuote(append(text, ','), name)
	text = append(append(text, ':'), value...)
	return edit{span{s.end, s.end}, text}
}

// splice returns the body with the edits applied and every other byte unchanged. The edits must not overlap.
func (s *body) splice(edits ...edit) []byte {
	size := len(s.raw)
	for i, e := range edits {
		size += len(e.text) - (e.at.end - e.at.start)
		for j := i; j > 0 && edits[j].at.start < edits[j-1].at.start; j-- {
			edits[j], edits[j-1] = edits[j-1], edits[j]
		}
	}
	out := make([]byte, 0, size)
	from := 0
	for _, e := range edits {
		out = append(append(out, s.raw[from:e.at.start]...), e.text...)
		from = e.at.end
	}
	return append(out, s.raw[from:]...)
}
