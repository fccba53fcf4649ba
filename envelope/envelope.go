package envelope

import (
	"bytes"
	"cmp"
	"maps"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Mode is where a message carries its control data, in CloudEvents' terms.
type Mode int

const (
	// Binary leaves the payload untouched and carries control data in headers. The default.
	Binary Mode = iota
	// Structured carries everything in the payload, the JSON object of the schema.
	Structured
)

// String returns "binary" or "structured".
func (m Mode) String() string {
	switch m {
	case Binary:
		return "binary"
	case Structured:
		return "structured"
	}
	return "Mode(" + strconv.Itoa(int(m)) + ")"
}

// ContentType is the media type of a structured body. A payload with this content type must be a readable envelope;
// without it, a payload is recognized by its members, see the package documentation.
const ContentType = "application/vnd.redrive.envelope+json"

// LayoutVersion is the version of the layout that this package writes.
const LayoutVersion = "1.0"

// Envelope is a message with everything that belongs to it, from any producer and in either mode. It is an immutable
// value: the With methods return copies, and it shares no memory with the message it came from or the messages it
// makes. It is safe for concurrent use. The zero Envelope is empty and not useful.
type Envelope struct {
	mode    Mode
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
	e.mode, e.body = Structured, s
	if s.text(s.id) == "" {
		id := cmp.Or(headerID(m), NewID())
		e = e.edited(s.set(s.id, "message_id", appendString(nil, id)))
	}
	return e, nil
}

// Message renders the envelope. An unchanged one renders byte for byte as it was read, payload and headers, except that
// a foreign message's headers now include its identity.
func (e Envelope) Message() *message.Message {
	m := message.NewMessage(e.uuid, bytes.Clone(e.payload))
	if e.headers != nil {
		m.Metadata = maps.Clone(e.headers)
	}
	return m
}

// Mode returns where the envelope has its control data.
func (e Envelope) Mode() Mode { return e.mode }

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

// Metadata returns a copy of the metadata. Values that are not JSON strings appear as their JSON text, null as "".
func (e Envelope) Metadata() map[string]string {
	if e.mode == Structured {
		return e.body.metadataText()
	}
	md := make(map[string]string, len(e.headers))
	for key, value := range e.headers {
		if !isReserved(key) {
			md[key] = value
		}
	}
	return md
}

// Meta returns one metadata value, or "".
func (e Envelope) Meta(key string) string { return e.Metadata()[key] }

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

// CorrelationID returns the correlation id, see the function CorrelationID.
func (e Envelope) CorrelationID() string { return correlationID(e.headers, &e.body) }

// CorrelationID returns the correlation id of a message in either mode: from the header, from the metadata of a
// structured body, otherwise from AMQP's property, or "".
func CorrelationID(m *message.Message) string {
	if id := m.Metadata[KeyCorrelationID]; id != "" {
		return id // without reading the body
	}
	var s body
	if mode, err := s.read(m); mode == Binary || err != nil {
		s = body{}
	}
	return correlationID(m.Metadata, &s)
}

func correlationID(md message.Metadata, s *body) string {
	return cmp.Or(md[KeyCorrelationID], s.metadataText()[KeyCorrelationID], md[KeyAMQPCorrelationID])
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

// EventKeys are the headers that may hold an event's name. The first one that is set counts.
func EventKeys() []string {
	return []string{KeyEvent, KeyCQRSName, "ce_type", "cloudEvents_type", "cloudEvents:type", KeyAMQPType, KeyRoutingKey}
}

func eventName(md message.Metadata, o *Origin) string {
	for _, key := range EventKeys() {
		if name := md[key]; name != "" {
			return name
		}
	}
	if o != nil {
		return o.RoutingKey
	}
	return ""
}

// WithError returns a copy whose last error is err, bounded for transmission. Earlier errors are not kept.
func (e Envelope) WithError(err Error) Envelope {
	err = err.bounded()
	if e.mode == Structured {
		out := e.edited(e.body.set(e.body.err, "error", err.json()))
		return out.withHeaders(dropErrorHeaders)
	}
	return e.withHeaders(err.setHeaders)
}

// WithIncrementedRetry returns a copy whose retry count is one higher.
func (e Envelope) WithIncrementedRetry() Envelope {
	count := strconv.Itoa(min(e.RetryCount()+1, MaxRetryCount))
	out := e
	if e.mode == Structured {
		out = e.edited(e.body.set(e.body.retry, "retry_count", []byte(count)))
	}
	return out.withHeaders(func(md message.Metadata) {
		if _, ok := md[KeyRetryCount]; ok || e.mode == Binary {
			md[KeyRetryCount] = count
		}
	})
}

// edited returns a copy with another body.
func (e Envelope) edited(edits ...edit) Envelope {
	e.payload = e.body.splice(edits...)
	e.body.scan(e.payload)
	return e
}

// withHeaders returns a copy with headers modified by change.
func (e Envelope) withHeaders(change func(md message.Metadata)) Envelope {
	headers := maps.Clone(e.headers)
	if headers == nil {
		headers = make(message.Metadata)
	}
	change(headers)
	e.headers = headers
	return e
}

func dropErrorHeaders(md message.Metadata) {
	delete(md, KeyErrorMessage)
	delete(md, KeyErrorCode)
	delete(md, KeyErrorTrace)
}

// adopt fills in what a binary message lacks as an envelope, from what is known of the delivery.
func adopt(md message.Metadata, m *message.Message, now time.Time) {
	adoptID(md, m)
	if md[KeyVersion] != "" {
		return // anything missing was left out on purpose
	}
	origin, ok := OriginFrom(m.Context())
	if !ok {
		origin = &Origin{}
	}
	md[KeyVersion] = LayoutVersion
	if md[KeyTimestamp] == "" {
		created := now
		if !origin.Timestamp.IsZero() {
			created = origin.Timestamp
		}
		if t, ok := timeHeader(md, KeyAMQPTimestamp); ok {
			created = t
		}
		md[KeyTimestamp] = formatTimestamp(created)
	}
	if md[KeySource] == "" {
		setOrDelete(md, KeySource, headerText(md[KeyAMQPAppID], maxName))
	}
	if md[KeyQueue] == "" {
		setOrDelete(md, KeyQueue, headerText(cmp.Or(origin.Topic, message.SubscribeTopicFromCtx(m.Context())), maxName))
	}
}

// adoptID gives a message without an id the one that Identify finds, or a new one.
func adoptID(md message.Metadata, m *message.Message) {
	if md[KeyMessageID] != "" {
		return
	}
	id := foreignID(m)
	if id == "" {
		id = NewID()
	}
	md[KeyMessageID] = id
}
