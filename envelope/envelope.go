package envelope

import (
	"bytes"
	"encoding/json"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Envelope is a message with everything that belongs to one, from any producer and in whichever mode it travels. It is
// an immutable value: the With methods return copies, and it shares no memory with the message it came from or the
// messages it makes. It is safe for concurrent use. The zero Envelope is empty and not useful.
type Envelope struct {
	mode    Mode // in which headers and payload are
	want    Mode // in which Message renders
	uuid    string
	headers message.Metadata // never modified once it is here
	payload []byte           // never modified once it is here
	body    body             // places in payload, if mode is Structured
	origin  *Origin
}

// FromMessage reads a message in either mode. A foreign message becomes a binary envelope: its payload is the data, its
// headers are the metadata, and what it lacks is made up from what is known of the delivery (see Identify); an id or
// time of creation that nothing tells is new with each call.
//
// The error wraps ErrMalformed: the body claims to be an envelope and is unreadable. The envelope returned with it is
// the foreign view of the message, whose Data are the exact bytes.
func FromMessage(m *message.Message) (Envelope, error) {
	e := Envelope{uuid: m.UUID, headers: maps.Clone(m.Metadata), payload: bytes.Clone(m.Payload)}
	if e.headers == nil {
		e.headers = make(message.Metadata)
	}
	if o, ok := OriginFrom(m.Context()); ok {
		origin := *o
		e.origin = &origin
	}
	var s body
	mode, err := s.read(m)
	switch {
	case err != nil:
		adoptID(e.headers, m) // no more: it must stay recognisable as malformed
		return e, err
	case mode == Binary:
		adopt(e.headers, m, time.Now().Truncate(time.Second))
		return e, nil
	}
	s.raw = e.payload
	e.mode, e.want, e.body = Structured, Structured, s
	if s.text(s.id) == "" {
		id := firstOf(headerID(m), NewID())
		e = e.edited(s.set(s.id, "message_id", appendString(nil, id)))
	}
	return e, nil
}

// Message renders the envelope in its mode. The payload of an unchanged envelope is byte for byte the one it was read
// from, and so are its headers, except that a foreign message's now hold its identity. The error is that an envelope
// cannot be converted to the other mode without losing something.
func (e Envelope) Message() (*message.Message, error) {
	r := e
	if e.mode != e.want {
		var err error
		if r, err = e.convert(); err != nil {
			return nil, err
		}
	}
	m := message.NewMessage(r.uuid, bytes.Clone(r.payload))
	if r.headers != nil {
		m.Metadata = maps.Clone(r.headers)
	}
	return m, nil
}

// Mode returns the mode in which Message renders the envelope.
func (e Envelope) Mode() Mode { return e.want }

// MessageID returns the id that the message has for its whole life.
func (e Envelope) MessageID() string { return carriable(e.field(KeyMessageID, e.body.id)) }

// Timestamp returns when the message was created; retries do not change it. It is the zero time if it cannot be read.
func (e Envelope) Timestamp() time.Time {
	t, _ := parseTime(e.field(KeyTimestamp, e.body.timestamp))
	return t
}

// Version returns the version of the layout, "1.0".
func (e Envelope) Version() string { return e.field(KeyVersion, e.body.version) }

// Source returns the service that created the message, "" if nothing tells.
func (e Envelope) Source() string { return e.field(KeySource, e.body.source) }

// Queue returns the original destination, also while the message is in a retry or a dead letter queue.
func (e Envelope) Queue() string { return e.field(KeyQueue, e.body.queue) }

// field returns a text field from where the mode has it.
func (e Envelope) field(key string, at span) string {
	if e.mode == Structured {
		return e.body.text(at)
	}
	return e.headers[key]
}

// Data returns a copy of the data: the payload in binary mode, the JSON text of the data member in structured mode. See
// the function Data for typed access.
func (e Envelope) Data() []byte { return bytes.Clone(e.data()) }

func (e Envelope) data() []byte {
	if e.mode == Structured {
		data, _ := e.body.payload() // read has checked it
		return data
	}
	return e.payload
}

// DataContentType returns the media type of the data as their producer gave it, or "".
func (e Envelope) DataContentType() string {
	for _, key := range [...]string{KeyDataContentType, KeyContentType, KeyAMQPContentType} {
		if t := e.headers[key]; t != "" && !isStructuredType(t) {
			return t
		}
	}
	return ""
}

// Metadata returns a copy of the metadata. Values that are not JSON strings are the JSON text that they are written as.
func (e Envelope) Metadata() map[string]string {
	entries := e.entries()
	md := make(map[string]string, len(entries))
	for key, v := range entries {
		md[key] = v.value
	}
	return md
}

// Meta returns one metadata value, or "".
func (e Envelope) Meta(key string) string { return e.entries()[key].value }

// entries returns the metadata with their kinds.
func (e Envelope) entries() map[string]entry {
	if e.mode == Structured {
		return e.body.entries()
	}
	return headerEntries(e.headers)
}

// Err returns the last error, or nil.
func (e Envelope) Err() *Error {
	if e.mode == Structured {
		return e.body.lastError()
	}
	return headerError(e.headers)
}

// RetryCount returns how many attempts failed so far, 0 when new. A counter that cannot be read is 0 here; ReadControl
// tells.
func (e Envelope) RetryCount() int {
	if e.mode == Structured {
		n, _ := retryCount(e.headers, &e.body)
		return n
	}
	n, _ := retryCount(e.headers, nil)
	return n
}

// Attempt returns the number of the attempt that comes next or is running: RetryCount + 1.
func (e Envelope) Attempt() int { return e.RetryCount() + 1 }

// OriginalDelay returns the first-delivery delay that the backoff is based on, within [0, MaxDelay]; 0 when there was
// none.
func (e Envelope) OriginalDelay() time.Duration {
	d, _ := originalDelay(e.headers)
	return d
}

// FirstFailure returns when the first attempt failed, the zero time if none did.
func (e Envelope) FirstFailure() time.Time {
	t, _ := timeHeader(e.headers, KeyFirstFailure)
	return t
}

// Event returns the event name, see EventName.
func (e Envelope) Event() string { return eventName(e.headers, e.origin) }

// CorrelationID returns the correlation id from the metadata, else from AMQP's property, or "".
func (e Envelope) CorrelationID() string {
	if id := e.Meta(KeyCorrelationID); id != "" {
		return id
	}
	return firstOf(e.headers[KeyCorrelationID], e.headers[KeyAMQPCorrelationID])
}

// CorrelationID returns the correlation id of a message in either mode: from the header, from the metadata of a
// structured body, else from AMQP's property, or "".
func CorrelationID(m *message.Message) string {
	if id := m.Metadata[KeyCorrelationID]; id != "" {
		return id
	}
	var s body
	if mode, err := s.read(m); mode == Structured && err == nil {
		if id := s.entries()[KeyCorrelationID]; id.value != "" && !id.isJSON {
			return id.value
		}
	}
	return m.Metadata[KeyAMQPCorrelationID]
}

// Origin returns where the delivery came from; false for an envelope that was not delivered or whose driver does not
// tell.
func (e Envelope) Origin() (Origin, bool) {
	if e.origin == nil {
		return Origin{}, false
	}
	return *e.origin, true
}

// EventName returns the name of the event that the message is: from our header, Watermill's cqrs header, CloudEvents'
// or AMQP's type, else the routing key, or "".
func EventName(m *message.Message) string {
	if name := eventName(m.Metadata, nil); name != "" {
		return name // without a walk through the contexts
	}
	o, _ := OriginFrom(m.Context())
	return eventName(nil, o)
}

func eventName(md message.Metadata, o *Origin) string {
	for _, key := range [...]string{KeyEvent, KeyCQRSName, "ce_type", "cloudEvents_type", KeyAMQPType, KeyRoutingKey} {
		if name := md[key]; name != "" {
			return name
		}
	}
	if o != nil {
		return o.RoutingKey
	}
	return ""
}

// encodeData returns data as payload bytes: []byte and json.RawMessage as they are, everything else as JSON.
func encodeData(data any) ([]byte, error) {
	switch v := data.(type) {
	case []byte:
		return bytes.Clone(v), nil
	case json.RawMessage:
		return bytes.Clone(v), nil
	}
	return json.Marshal(data)
}
