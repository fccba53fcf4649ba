package envelope

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrNotConvertible is wrapped by the error of WithMode for an envelope that the other mode cannot hold without loss.
var ErrNotConvertible = errors.New("envelope: not convertible without loss")

// WithMode returns a copy in the given mode. Nothing is lost: converted back, it has the same fields, data, metadata
// and headers. Only the spelling of the JSON around the data is new (white space, order, escapes), and an error in a
// body keeps its message, code and trace.
//
// Every conversion is verified by converting back. If that does not restore the envelope, the error wraps
// ErrNotConvertible: its body has members that this package does not know, metadata named like a header, or texts that
// no header can carry; its headers are not UTF-8; or its retry count cannot be read.
func (e Envelope) WithMode(mode Mode) (Envelope, error) {
	if mode == e.mode {
		return e, nil
	}
	out := e.converted()
	if out.mode != mode || !e.equivalent(out.converted()) {
		return Envelope{}, fmt.Errorf("%w: %v mode cannot hold a name, a text or a member of %s", ErrNotConvertible, mode,
			e.MessageID())
	}
	return out, nil
}

func (e Envelope) converted() Envelope {
	if e.mode == Binary {
		return e.toStructured()
	}
	return e.toBinary()
}

// bodyForm is what headers cannot express about the body that they were converted from, as JSON in KeyBodyForm.
type bodyForm struct {
	JSON    []string `json:"json,omitempty"`    // metadata whose values are JSON, not text
	Headers []string `json:"headers,omitempty"` // headers that are not metadata
}

func (e Envelope) toStructured() Envelope {
	var form bodyForm
	_ = json.Unmarshal([]byte(e.headers[KeyBodyForm]), &form) // an unreadable one names nothing
	headers, metadata := message.Metadata{KeyContentType: ContentType}, make(map[string][]byte)
	for key, value := range e.headers {
		isJSON := slices.Contains(form.JSON, key)
		switch {
		case !e.isOther(key, value): // the body has it
		case key == KeyContentType:
			headers[KeyDataContentType] = value
		case isReserved(key) || slices.Contains(form.Headers, key):
			headers[key] = value
		case isJSON && value == "":
			metadata[key] = []byte("null")
		case isJSON && embeddable([]byte(value)):
			metadata[key] = []byte(value)
		default:
			metadata[key] = appendString(nil, value)
		}
	}
	out := e
	out.mode, out.headers = Structured, headers
	out.payload = renderBody([...]string{e.MessageID(), e.headers[KeyTimestamp], e.Version(), e.Source(), e.Queue()},
		e.payload, metadata)
	out.body.scan(out.payload)
	if err := e.Err(); err != nil {
		out = out.WithError(*err)
	}
	return out.edited(out.body.set(out.body.retry, "retry_count", strconv.AppendInt(nil, int64(e.RetryCount()), 10)))
}

func (e Envelope) toBinary() Envelope {
	md, form := e.otherHeaders(), bodyForm{}
	for key := range md {
		if !isReserved(key) {
			form.Headers = append(form.Headers, key)
		}
	}
	for key, value := range e.body.metadataJSON() {
		if value[0] == '"' {
			md[key] = unquote([]byte(value[1 : len(value)-1]))
			continue
		}
		form.JSON = append(form.JSON, key)
		if md[key] = value; value == "null" {
			md[key] = ""
		}
	}
	if len(form.JSON)+len(form.Headers) > 0 {
		slices.Sort(form.JSON)
		slices.Sort(form.Headers)
		text, _ := encodeJSON(form) // lists of strings always have a JSON form
		md[KeyBodyForm] = string(text)
	}
	for i, key := range [...]string{KeyMessageID, KeyTimestamp, KeyVersion, KeySource, KeyQueue} {
		setOrDelete(md, key, headerText(e.fields()[i], maxName))
	}
	if n := e.RetryCount(); n > 0 {
		md[KeyRetryCount] = strconv.Itoa(n)
	}
	if err := e.Err(); err != nil {
		err.bounded().setHeaders(md)
	}
	return Envelope{mode: Binary, uuid: e.uuid, headers: md, payload: e.Data(), origin: e.origin}
}

// equivalent reports whether e, which back was converted from and back into, is restored.
func (e Envelope) equivalent(back Envelope) bool {
	_, readable := retryCount(e.headers, &e.body)
	return readable && e.body.isKnown() && e.fields() == back.fields() && bytes.Equal(e.data(), back.data()) &&
		e.RetryCount() == back.RetryCount() && reflect.DeepEqual(e.Err(), back.Err()) &&
		maps.Equal(e.body.metadataJSON(), back.body.metadataJSON()) && maps.Equal(e.otherHeaders(), back.otherHeaders())
}

// fields are the text fields, in the order of the schema.
func (e Envelope) fields() [5]string {
	return [...]string{
		e.field(KeyMessageID, e.body.id), e.field(KeyTimestamp, e.body.timestamp), cmp.Or(e.Version(), LayoutVersion),
		e.Source(), e.Queue(),
	}
}

// otherHeaders are the headers whose content is not in the body in structured mode, with the type of the data as in
// binary mode.
func (e Envelope) otherHeaders() message.Metadata {
	md := maps.Clone(e.headers)
	maps.DeleteFunc(md, func(key, value string) bool { return !e.isOther(key, value) })
	if own, ok := md[KeyDataContentType]; ok && md[KeyContentType] == "" {
		md[KeyContentType] = own
		delete(md, KeyDataContentType)
	}
	return md
}

func (e Envelope) isOther(key, value string) bool {
	switch key {
	case KeyMessageID, KeyTimestamp, KeyVersion, KeySource, KeyQueue, KeyRetryCount, KeyErrorMessage, KeyErrorCode,
		KeyErrorTrace, KeyBodyForm:
		return false
	case KeyContentType, KeyAMQPContentType:
		return e.mode == Binary || !isStructuredType(value)
	}
	return true
}

// isKnown reports whether the body has no members but those of the layout.
func (s *body) isKnown() bool {
	raw := bytes.TrimPrefix(s.raw, []byte(bom))
	for key := range members(raw, 0) {
		if s.member(key) == nil {
			return false
		}
	}
	return true
}

// metadataJSON returns the metadata as JSON texts without optional white space and escapes.
func (s *body) metadataJSON() map[string]string {
	md := make(map[string]string)
	if !s.metadata.ok() {
		return md
	}
	for key, value := range members(s.raw, s.metadata.start) {
		var text bytes.Buffer
		if s.raw[value.start] == '"' {
			text.Write(appendString(nil, s.text(value)))
		} else {
			_ = json.Compact(&text, value.of(s.raw)) // the scanner has validated it
		}
		md[unquote(key)] = text.String()
	}
	return md
}
