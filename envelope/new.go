package envelope

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Option sets a property of a new envelope.
type Option func(*creation)

type creation struct {
	id, source, queue, event string

	at       time.Time
	mode     Mode
	delay    *time.Duration
	metadata map[string]any
}

// ID sets the message id. Defaults to NewID().
func ID(id string) Option { return func(c *creation) { c.id = id } }

// CreatedAt sets the time of creation. Defaults to the current time in whole seconds.
func CreatedAt(t time.Time) Option { return func(c *creation) { c.at = t } }

// InMode sets the mode in which the envelope is rendered. Defaults to Binary.
func InMode(mode Mode) Option { return func(c *creation) { c.mode = mode } }

// Delay asks for the first delivery after d, see SetDelay.
func Delay(d time.Duration) Option { return func(c *creation) { c.delay = &d } }

// EventNamed sets the event name.
func EventNamed(name string) Option { return func(c *creation) { c.event = name } }

// Meta adds metadata of any type that encoding/json supports: a number, a boolean, a list, an object. In structured
// mode the value is that JSON value; in binary mode the header holds its JSON text. For strings, use New's metadata.
func Meta(key string, value any) Option {
	return func(c *creation) { c.metadata[key] = value }
}

// New returns the envelope of a new message. source is the service that creates it and queue the destination. data may
// be anything that encoding/json supports; []byte and json.RawMessage are used unchanged, JSON or not. metadata holds
// extras such as priority and correlation_id and may be nil; see Meta for values that are not strings.
//
// The error names everything that is wrong: an empty queue, data that cannot be encoded, metadata under a name that
// belongs to the envelope (IsOurs).
func New(source, queue string, data any, metadata map[string]string, opts ...Option) (Envelope, error) {
	c := creation{
		id: NewID(), source: source, queue: queue, at: time.Now().Truncate(time.Second),
		metadata: make(map[string]any, len(metadata)),
	}
	for key, value := range metadata {
		c.metadata[key] = value
	}
	for _, opt := range opts {
		opt(&c)
	}
	faults := c.validate()
	payload, err := encodeData(data)
	if err != nil {
		faults = append(faults, fmt.Errorf("envelope: new: data: %w", err))
	}
	encoded, err := c.encodeMetadata()
	if err := errors.Join(append(faults, err)...); err != nil {
		return Envelope{}, err
	}

	e := Envelope{mode: c.mode, uuid: c.id, payload: payload}
	if c.mode == Structured {
		e.headers = message.Metadata{KeyContentType: ContentType}
		e.payload = renderBody([...]string{c.id, formatTimestamp(c.at), LayoutVersion, c.source, c.queue}, payload, encoded)
		e.body.scan(e.payload)
	} else {
		e.headers = c.renderHeaders(encoded)
	}
	setOrDelete(e.headers, KeyEvent, c.event)
	if c.delay != nil {
		SetDelay(&message.Message{Metadata: e.headers}, *c.delay)
	}
	return e, nil
}

// encodeData returns data as payload bytes: []byte and json.RawMessage unchanged, everything else as JSON.
func encodeData(data any) ([]byte, error) {
	switch v := data.(type) {
	case []byte:
		return bytes.Clone(v), nil
	case json.RawMessage:
		return bytes.Clone(v), nil
	}
	return json.Marshal(data)
}

func (c *creation) encodeMetadata() (map[string][]byte, error) {
	var faults []error
	encoded := make(map[string][]byte, len(c.metadata))
	for _, key := range slices.Sorted(maps.Keys(c.metadata)) {
		value := c.metadata[key]
		if isReserved(key) {
			faults = append(faults, fmt.Errorf("envelope: new: the metadata name %q belongs to the envelope; choose another",
				key))
			continue
		}
		if text, ok := value.(string); ok && c.mode == Structured && !utf8.ValidString(key+text) {
			faults = append(faults, fmt.Errorf("envelope: new: metadata %q is not UTF-8, so a JSON body cannot hold it", key))
		}
		var err error
		if encoded[key], err = encodeJSON(value); err != nil {
			faults = append(faults, fmt.Errorf("envelope: new: metadata %q: %w", key, err))
		}
	}
	return encoded, errors.Join(faults...)
}

// renderHeaders returns the headers of binary mode.
func (c *creation) renderHeaders(metadata map[string][]byte) message.Metadata {
	headers := make(message.Metadata, len(metadata)+8)
	for key, value := range metadata {
		text, ok := c.metadata[key].(string)
		switch {
		case ok:
			headers[key] = text // which need not be UTF-8
		case value[0] == '"': // a type whose JSON is a string, such as time.Time
			headers[key] = unquote(value[1 : len(value)-1])
		default:
			headers[key] = string(value)
		}
	}
	headers[KeyMessageID] = c.id
	headers[KeyTimestamp] = formatTimestamp(c.at)
	headers[KeyVersion] = LayoutVersion
	headers[KeyQueue] = c.queue
	setOrDelete(headers, KeySource, c.source)
	return headers
}

// renderBody returns the body of structured mode: compact, the members in the order of the schema. fields are its first
// five.
func renderBody(fields [5]string, data []byte, metadata map[string][]byte) []byte {
	b := make([]byte, 0, len(data)+512)
	for i, name := range [...]string{
		`{"message_id":`, `,"timestamp":`, `,"version":`, `,"source":`, `,"queue":`,
	} {
		b = appendString(append(b, name...), fields[i])
	}
	if embeddable(data) {
		b = append(append(b, `,"data":`...), data...)
	} else {
		b = base64.StdEncoding.AppendEncode(append(b, `,"data_base64":"`...), data)
		b = append(b, '"')
	}
	b = append(b, `,"metadata":{`...)
	for i, key := range slices.Sorted(maps.Keys(metadata)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(appendString(b, key), ':'), metadata[key]...)
	}
	return append(b, `},"error":null,"retry_count":0}`...)
}

// embeddable reports whether a JSON body reproduces the data exactly: JSON in UTF-8 without surrounding white space,
// which would be lost in that of the body.
func embeddable(data []byte) bool {
	return len(data) > 0 && data[0] > ' ' && skipValue(data, 0, 1) == len(data) && utf8.Valid(data)
}

func (c *creation) validate() (faults []error) {
	if c.queue == "" {
		faults = append(faults, errors.New("envelope: new: queue is empty; name the destination"))
	}
	for _, f := range [...]struct{ name, value string }{
		{"source", c.source},
		{"queue", c.queue},
		{"id", c.id},
		{"event", c.event},
	} {
		if f.value != "" && carriable(f.value) != f.value {
			faults = append(faults, fmt.Errorf(
				"envelope: new: %s cannot travel in a header: it must be UTF-8 of at most %d bytes without control characters",
				f.name, maxName))
		}
	}
	if c.id == "" {
		faults = append(faults, errors.New("envelope: new: the id is empty; leave the option out to get one"))
	}
	if c.mode != Binary && c.mode != Structured {
		faults = append(faults, fmt.Errorf("envelope: new: %v is not a mode; use Binary or Structured", c.mode))
	}
	return faults
}

// DataError is the error of data that do not decode into the handler's type. It is permanent, because no retry helps.
type DataError struct {
	// Type is the requested Go type.
	Type string
	// Err is the reason, usually an error of encoding/json.
	Err error
}

// Error returns the reason with the requested type.
func (e *DataError) Error() string { return "envelope: data is not a " + e.Type + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *DataError) Unwrap() error { return e.Err }

// Permanent returns true: the same bytes will never decode.
func (e *DataError) Permanent() bool { return true }

// Data decodes the envelope's data as JSON into a T; []byte and json.RawMessage get the data unchanged. The error is a
// *DataError. If the data are a job of Laravel's own queue, its data member is decoded; a job that is a serialized PHP
// object cannot be decoded, which is an error.
func Data[T any](e Envelope) (T, error) { return decodeData[T](e.data()) }

// Handle makes a Watermill handler of a function that takes the decoded data, in either mode. Data that do not decode
// cause a *DataError, which the pipeline's classifier treats as permanent. The context is the message's.
func Handle[T any](fn func(ctx context.Context, data T) error) message.NoPublishHandlerFunc {
	if fn == nil {
		panic("envelope: Handle needs a function")
	}
	return func(m *message.Message) error {
		data, err := messageData(m)
		if err != nil {
			return dataError[T](err)
		}
		v, err := decodeData[T](data)
		if err != nil {
			return err
		}
		return fn(m.Context(), v)
	}
}

// messageData returns the data of a message without building an envelope.
func messageData(m *message.Message) ([]byte, error) {
	var s body
	mode, err := s.read(m)
	if mode == Binary || err != nil {
		return m.Payload, err
	}
	return s.payload()
}

func decodeData[T any](data []byte) (T, error) {
	var v T
	switch p := any(&v).(type) {
	case *[]byte:
		*p = bytes.Clone(data)
	case *json.RawMessage:
		*p = bytes.Clone(data)
	default:
		data, err := jobData(bytes.TrimPrefix(data, []byte(bom)))
		if err != nil {
			return v, dataError[T](err)
		}
		if err := json.Unmarshal(data, &v); err != nil {
			return v, dataError[T](err)
		}
	}
	return v, nil
}

func dataError[T any](err error) error {
	return &DataError{Type: fmt.Sprintf("%T", *new(T)), Err: err}
}

// jobData returns the data of a job of Laravel's own queue, which is not an envelope: its data member if that is plain
// JSON, or an error if it is a serialized PHP object. Decoded as a whole, either would give the handler's type its zero
// value and no error. All other data are returned unchanged.
func jobData(data []byte) ([]byte, error) {
	if !bytes.Contains(data, []byte(`"displayName"`)) || !bytes.Contains(data, []byte(`"job"`)) {
		return data, nil
	}
	var job struct {
		DisplayName string          `json:"displayName"`
		Job         string          `json:"job"`
		Data        json.RawMessage `json:"data"`
	}
	err := json.Unmarshal(data, &job)
	if err != nil || job.DisplayName == "" || !strings.Contains(job.Job, "@") || job.Data == nil {
		return data, nil //nolint:nilerr // it is not a job
	}
	var command struct { // of Laravel's CallQueuedHandler
		Command *json.RawMessage `json:"command"`
	}
	if json.Unmarshal(job.Data, &command) == nil && command.Command != nil {
		return nil, fmt.Errorf("%w: a job of Laravel's own queue, %s: its data are a serialized PHP object; put an "+
			"envelope on the queue instead",
			ErrMalformed, headerText(job.DisplayName, maxName))
	}
	return job.Data, nil
}
