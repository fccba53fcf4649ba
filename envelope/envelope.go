package envelope

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Envelope is a message with everything that belongs to it, from any producer and in either mode. It is an immutable
// value: the With methods return copies, and it shares no memory with the message it came from or the messages it
// makes. It is safe for concurrent use. The zero Envelope is empty and not useful.
type Envelope struct {
	mode    Mode // mode of headers and payload
	want    Mode // mode in which Message renders
	uuid    string
	headers message.Metadata // never modified once set
	payload []byte           // never modified once set
	body    body             // positions in payload, if mode is Structured
	origin  *Origin
}

// FromMessage reads a message in either mode. A foreign message becomes a binary envelope: its payload is the data, its
// headers are the metadata, and anything missing is derived from what is known of the delivery (see Identify); an id or
// a time of creation that cannot be derived is new with each call.
//
// The error wraps ErrMalformed: the body claims to be an envelope but is unreadable. The envelope returned with it is
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
		adoptID(e.headers, m) // and nothing else: it must remain recognizable as malformed
		return e, err
	case mode == Binary:
		adopt(e.headers, m, time.Now().Truncate(time.Second))
		return e, nil
	}
	s.raw = e.payload
	e.mode, e.want, e.body = Structured, Structured, s
	if s.text(s.id) == "" {
		id := cmp.Or(headerID(m), NewID())
		e = e.edited(s.set(s.id, "message_id", appendString(nil, id)))
	}
	return e, nil
}

// Message renders the envelope in its mode. An unchanged envelope renders byte for byte as it was read, payload and
// headers, except that a foreign message's headers now include its identity. The error is that the envelope cannot be
// converted to the other mode without loss.
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

// MessageID returns the id that the message keeps for its whole life.
func (e Envelope) MessageID() string { return carriable(e.field(KeyMessageID, e.body.id)) }

// Timestamp returns when the message was created, which retries do not change, or the zero time if that cannot be read.
func (e Envelope) Timestamp() time.Time {
	t, _ := parseTime(e.field(KeyTimestamp, e.body.timestamp))
	return t
}

// Version returns the version of the layout, "1.0".
func (e Envelope) Version() string { return e.field(KeyVersion, e.body.version) }

// Source returns the service that created the message, or "" if unknown.
func (e Envelope) Source() string { return e.field(KeySource, e.body.source) }

// Queue returns the original destination, even while the message is in a retry or dead letter queue.
func (e Envelope) Queue() string { return e.field(KeyQueue, e.body.queue) }

// field returns a text field from the place that the mode prescribes.
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
		data, _ := e.body.payload() // read has validated it
		return data
	}
	return e.payload
}

// DataContentType returns the media type of the data as given by their producer, or "".
func (e Envelope) DataContentType() string {
	for _, key := range [...]string{KeyDataContentType, KeyContentType, KeyAMQPContentType} {
		if t := e.headers[key]; t != "" && !isStructuredType(t) {
			return t
		}
	}
	return ""
}

// Metadata returns a copy of the metadata. Values that are not JSON strings appear as their JSON text.
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

// RetryCount returns how many attempts have failed so far, 0 for a new message. An unreadable counter is 0 here;
// ReadControl distinguishes it.
func (e Envelope) RetryCount() int {
	var s *body
	if e.mode == Structured {
		s = &e.body
	}
	n, _ := retryCount(e.headers, s)
	return n
}

// Attempt returns the number of the attempt that is next or running: RetryCount + 1.
func (e Envelope) Attempt() int { return e.RetryCount() + 1 }

// OriginalDelay returns the first-delivery delay that the backoff is based on, within [0, MaxDelay]; 0 without one.
func (e Envelope) OriginalDelay() time.Duration {
	d, _ := originalDelay(e.headers)
	return d
}

// FirstFailure returns when the first attempt failed, or the zero time if none did.
func (e Envelope) FirstFailure() time.Time {
	t, _ := timeHeader(e.headers, KeyFirstFailure)
	return t
}

// Event returns the event name, see EventName.
func (e Envelope) Event() string { return eventName(e.headers, e.origin) }

// CorrelationID returns the correlation id from the metadata, otherwise from AMQP's property, or "".
func (e Envelope) CorrelationID() string {
	if id := e.Meta(KeyCorrelationID); id != "" {
		return id
	}
	return cmp.Or(e.headers[KeyCorrelationID], e.headers[KeyAMQPCorrelationID])
}

// CorrelationID returns the correlation id of a message in either mode: from the header, from the metadata of a
// structured body, otherwise from AMQP's property, or "".
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

// Origin returns where the delivery came from. It reports false if the envelope was not delivered or its driver does
// not provide an origin.
func (e Envelope) Origin() (Origin, bool) {
	if e.origin == nil {
		return Origin{}, false
	}
	return *e.origin, true
}

// EventName returns the message's event name: from our header, Watermill's cqrs header, CloudEvents' or AMQP's type,
// otherwise the routing key, or "".
func EventName(m *message.Message) string {
	if name := eventName(m.Metadata, nil); name != "" {
		return name // without walking up the contexts
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
