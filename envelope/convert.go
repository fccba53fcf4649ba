package envelope

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrNotConvertible is wrapped by the error of Message when an envelope cannot be rendered in the other mode without
// loss. The envelope's own mode always works.
var ErrNotConvertible = errors.New("envelope: not convertible without loss")

// fieldKeys are the headers of binary mode whose content is in the body in structured mode.
var fieldKeys = [...]string{
	KeyMessageID, KeyTimestamp, KeyVersion, KeySource, KeyQueue, KeyRetryCount,
	KeyErrorMessage, KeyErrorCode, KeyErrorTrace, KeyMetadataJSON,
}

// convert returns the envelope in the other mode. Every conversion is verified by converting back: unless that restores
// the same bytes and headers, it is an error.
func (e Envelope) convert() (Envelope, error) {
	if e.mode == Structured {
		return e.toBinary()
	}
	out := e.structured()
	back, err := out.toBinary()
	// The frame follows the body that it represents, so it differs once something has changed.
	dropFrame := func(md message.Metadata) { delete(md, KeyFrame) }
	if err == nil && !e.withHeaders(dropFrame).same(back.withHeaders(dropFrame)) {
		err = fmt.Errorf("%w: headers use names that belong to this package in a way that it does not", ErrNotConvertible)
	}
	return out, err
}

// toBinary returns a structured envelope in binary mode. A frame is added only if converting back would lose something
// without it.
func (e Envelope) toBinary() (Envelope, error) {
	out := e.flattened()
	if !e.same(out.structured()) {
		e.addFrame(out.headers)
		if !e.same(out.structured()) {
			return e, fmt.Errorf("%w: the structured body cannot be restored from headers", ErrNotConvertible)
		}
	}
	if n := ownSize(out.headers); n > MaxHeaders {
		return e, fmt.Errorf("%w: what the body holds besides the data takes %d bytes of headers, the limit is %d; keep "+
			"the structured mode",
			ErrNotConvertible, n, MaxHeaders)
	}
	return out, nil
}

func (e Envelope) same(o Envelope) bool {
	return e.mode == o.mode && bytes.Equal(e.payload, o.payload) && maps.Equal(e.headers, o.headers)
}

// ownSize returns the size in bytes of this package's headers.
func ownSize(md message.Metadata) (n int) {
	for key, value := range md {
		if isReserved(key) {
			n += len(key) + len(value)
		}
	}
	return n
}

// structured returns a binary envelope in structured mode: from its frame if it has a usable one, otherwise in the
// canonical form.
func (e Envelope) structured() Envelope {
	if f, ok := readFrame(e.headers); ok {
		if out, ok := e.refilled(f); ok {
			return out
		}
	}
	out := Envelope{mode: Structured, want: e.want, uuid: e.uuid, headers: maps.Clone(e.headers), origin: e.origin}
	entries := movableEntries(e.headers)
	for key := range entries {
		delete(out.headers, key)
	}
	for _, key := range fieldKeys {
		delete(out.headers, key)
	}
	delete(out.headers, KeyFrame)
	if own := e.headers[KeyContentType]; own != "" {
		out.headers[KeyDataContentType] = own
	}
	out.headers[KeyContentType] = ContentType
	out.payload = e.canonical(entries)
	out.body.scan(out.payload)

	// A header that the body cannot represent exactly ("007" as a counter, invalid UTF-8) stays alongside it.
	back := out.flattened()
	for _, key := range fieldKeys {
		value, ok := e.headers[key]
		if again, said := back.headers[key]; ok && key != KeyVersion && (!said || again != value) {
			out.headers[key] = value
		}
	}
	return out
}

// canonical renders the body as documented: compact, the members in the order of the schema, the metadata in the order
// of their names.
func (e Envelope) canonical(entries map[string]entry) []byte {
	b := make([]byte, 0, len(e.payload)+512)
	for _, f := range [...]struct{ name, key string }{
		{`{"message_id":`, KeyMessageID},
		{`,"timestamp":`, KeyTimestamp},
		{`,"version":`, KeyVersion},
		{`,"source":`, KeySource},
		{`,"queue":`, KeyQueue},
	} {
		b = appendString(append(b, f.name...), e.headers[f.key])
	}
	b = appendDataMember(append(b, ','), e.payload)
	b = appendEntries(append(b, `,"metadata":`...), entries)
	b = appendError(append(b, `,"error":`...), headerError(e.headers))
	b = appendRetryCount(append(b, `,"retry_count":`...), e.headers)
	return append(b, '}')
}

func appendError(b []byte, err *Error) []byte {
	if err == nil {
		return append(b, "null"...)
	}
	return err.appendJSON(b)
}

// appendRetryCount renders the counter as a number, or unchanged as a string if it cannot be read as one: it must not
// become 0.
func appendRetryCount(b []byte, md message.Metadata) []byte {
	text, ok := md[KeyRetryCount]
	n, valid := parseCount(text)
	if ok && !valid {
		return appendString(b, text)
	}
	return strconv.AppendInt(b, int64(n), 10)
}

// flattened returns a structured envelope in binary mode, without a frame.
func (e Envelope) flattened() Envelope {
	s := &e.body
	data, _ := s.payload() // read has validated it
	md := maps.Clone(e.headers)
	for _, key := range [...]string{KeyContentType, KeyAMQPContentType} {
		if isStructuredType(md[key]) {
			delete(md, key)
		}
	}
	if own, ok := md[KeyDataContentType]; ok {
		md[KeyContentType] = own
		delete(md, KeyDataContentType)
	}
	for _, f := range s.textFields() {
		if header, ok := md[f.key]; !ok || !f.says(header) {
			setOrDelete(md, f.key, f.header())
		}
	}
	n, valid := retryCount(md, s)
	if header, ok := md[KeyRetryCount]; !ok || !sameCount(header, n, valid) {
		delete(md, KeyRetryCount)
		if !valid {
			md[KeyRetryCount] = headerText(s.retryText(), maxName)
		} else if n > 0 {
			md[KeyRetryCount] = strconv.Itoa(n)
		}
	}
	if err := s.lastError(); !sameError(headerError(md), err) {
		dropErrorHeaders(md)
		if err != nil {
			err.bounded().setHeaders(md)
		}
	}
	s.flattenMetadata(md)
	return Envelope{mode: Binary, want: e.want, uuid: e.uuid, headers: md, payload: bytes.Clone(data), origin: e.origin}
}

// textField is one of the body's text members and the header with the same meaning.
type textField struct {
	name, key string
	at        span
	text      string
}

func (s *body) textFields() [5]textField {
	return [...]textField{
		{"message_id", KeyMessageID, s.id, s.text(s.id)},
		{"timestamp", KeyTimestamp, s.timestamp, s.text(s.timestamp)},
		{"version", KeyVersion, s.version, s.text(s.version)},
		{"source", KeySource, s.source, s.text(s.source)},
		{"queue", KeyQueue, s.queue, s.text(s.queue)},
	}
}

// header returns the text in the form that a header can carry. The version is never empty, since its presence marks
// binary mode.
func (f *textField) header() string {
	switch f.key {
	case KeyMessageID:
		return carriable(f.text)
	case KeyVersion:
		return cmp.Or(headerText(f.text, maxName), LayoutVersion)
	}
	return headerText(f.text, maxName)
}

// says reports whether a header has the same meaning as the member.
func (f *textField) says(header string) bool {
	if header == f.header() {
		return true
	}
	quoted := appendString(nil, header)
	return unquote(quoted[1:len(quoted)-1]) == f.text
}

func sameCount(header string, n int, valid bool) bool {
	m, ok := parseCount(header)
	return ok == valid && (m == n || !ok)
}

func sameError(a, b *Error) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.bounded() == b.bounded()
}
