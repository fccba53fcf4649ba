package cloudevents

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"github.com/redrive-go/redrive/envelope"
)

// ContentType is the media type of an event in structured form.
const ContentType = event.ApplicationCloudEventsJSON

// ErrNotCloudEvent is returned by FromMessage for a message that does not claim to be a CloudEvent.
var ErrNotCloudEvent = errors.New("cloudevents: not a CloudEvent: neither a CloudEvents content type " +
	"nor a specversion header")

// Binding selects the headers of a message.
type Binding int

const (
	// Kafka writes ce_* and content-type, as in the Kafka protocol binding. It suits every broker except RabbitMQ.
	Kafka Binding = iota
	// AMQP writes cloudEvents_* and the content-type property.
	AMQP
)

func (b Binding) prefix() string {
	if b == AMQP {
		return "cloudEvents_"
	}
	return "ce_"
}

func (b Binding) contentType() string {
	if b == AMQP {
		return envelope.KeyAMQPContentType
	}
	return envelope.KeyContentType
}

// prefixes are those that are read; cloudEvents: is the one of AMQP 1.0.
var prefixes = [...]string{"ce_", "cloudEvents_", "cloudEvents:"}

// Structured returns a message whose payload is the event as JSON. The event's data are unchanged, byte for byte.
func Structured(ev event.Event, binding Binding) (*message.Message, error) {
	if err := ev.Validate(); err != nil {
		return nil, fmt.Errorf("cloudevents: structured: %w", err)
	}
	// json.Marshal would compact the data; the SDK's writer copies them.
	var b bytes.Buffer
	if err := event.WriteJson(&ev, &b); err != nil {
		return nil, fmt.Errorf("cloudevents: structured: %w", err)
	}
	m := message.NewMessage(ev.ID(), b.Bytes())
	m.Metadata[binding.contentType()] = ContentType
	return m, nil
}

// Binary returns a message whose payload is the event's data, with its attributes in headers.
func Binary(ev event.Event, binding Binding) (*message.Message, error) {
	if err := ev.Validate(); err != nil {
		return nil, fmt.Errorf("cloudevents: binary: %w", err)
	}
	m := message.NewMessage(ev.ID(), bytes.Clone(ev.Data()))
	set := func(name, value string) { put(m.Metadata, binding.prefix()+name, value) }
	set("specversion", ev.SpecVersion())
	set("id", ev.ID())
	set("source", ev.Source())
	set("type", ev.Type())
	set("subject", ev.Subject())
	set("dataschema", ev.DataSchema())
	if t := ev.Time(); !t.IsZero() {
		set("time", t.Format(time.RFC3339Nano))
	}
	for name, value := range ev.Extensions() {
		text, err := types.Format(value)
		if err != nil {
			return nil, fmt.Errorf("cloudevents: binary: extension %s: %w", name, err)
		}
		set(name, text)
	}
	put(m.Metadata, binding.contentType(), ev.DataContentType())
	return m, nil
}

// FromMessage reads a message in either form, under either binding. It returns ErrNotCloudEvent for a message that does
// not claim to be an event, and an error with the reason for one that claims to be but is not valid. The message is not
// changed.
func FromMessage(m *message.Message) (event.Event, error) {
	for _, key := range [...]string{envelope.KeyContentType, envelope.KeyAMQPContentType} {
		if isMediaType(m.Metadata[key], ContentType) {
			return fromJSON(m.Payload)
		}
	}
	for _, prefix := range prefixes {
		if version, ok := m.Metadata[prefix+"specversion"]; ok {
			return fromHeaders(m, prefix, version)
		}
	}
	return event.Event{}, ErrNotCloudEvent
}

// fromJSON reads the attributes with the SDK, but not the data: v2.16.2 rejects numbers that no float64 can hold, even
// where it only skips them.
func fromJSON(payload []byte) (ev event.Event, err error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(payload, &members); err != nil {
		return event.Event{}, fmt.Errorf("cloudevents: structured: %w", err)
	}
	data, hasData := members["data"]
	encoded, hasBase64 := members["data_base64"]
	delete(members, "data")
	delete(members, "data_base64")
	attributes, err := json.Marshal(members)
	if err != nil {
		return event.Event{}, fmt.Errorf("cloudevents: structured: %w", err)
	}
	if err := event.ReadJson(&ev, bytes.NewReader(attributes)); err != nil {
		return event.Event{}, fmt.Errorf("cloudevents: structured: %w", err)
	}
	switch {
	case hasData && hasBase64:
		return event.Event{}, errors.New("cloudevents: structured: data and data_base64 exclude each other")
	case hasBase64:
		ev.DataBase64 = true
		err = json.Unmarshal(encoded, &ev.DataEncoded) // a []byte is base64 to encoding/json
	case hasData && isJSONType(ev.DataMediaType()):
		ev.DataEncoded = data
	case hasData:
		var text string
		err = json.Unmarshal(data, &text)
		ev.DataEncoded = []byte(text)
	}
	if err != nil {
		return event.Event{}, fmt.Errorf("cloudevents: structured: data of type %q: %w", ev.DataContentType(), err)
	}
	return validated(ev)
}

func fromHeaders(m *message.Message, prefix, version string) (event.Event, error) {
	if version != event.CloudEventsVersionV1 {
		return event.Event{}, fmt.Errorf("cloudevents: binary: specversion %.20q is not supported; it must be 1.0", version)
	}
	ev := event.New(event.CloudEventsVersionV1)
	for key, value := range m.Metadata {
		name, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		switch name {
		case "specversion":
		case "id":
			ev.SetID(value)
		case "source":
			ev.SetSource(value)
		case "type":
			ev.SetType(value)
		case "subject":
			ev.SetSubject(value)
		case "dataschema":
			ev.SetDataSchema(value)
		case "datacontenttype":
			ev.SetDataContentType(value)
		case "time":
			t, err := types.ParseTime(value)
			if err != nil {
				return event.Event{}, fmt.Errorf("cloudevents: binary: time: %w", err)
			}
			ev.SetTime(t)
		default:
			ev.SetExtension(name, value)
		}
	}
	if t := cmp.Or(m.Metadata[envelope.KeyContentType], m.Metadata[envelope.KeyAMQPContentType]); t != "" {
		ev.SetDataContentType(t)
	}
	ev.DataEncoded = bytes.Clone(m.Payload)
	ev.DataBase64 = !isExactJSON(ev.DataMediaType(), ev.DataEncoded)
	return validated(ev)
}

// validated also reports the faults that the SDK's setters have recorded.
func validated(ev event.Event) (event.Event, error) {
	if err := ev.Validate(); err != nil {
		return event.Event{}, fmt.Errorf("cloudevents: not a valid event: %w", err)
	}
	return ev, nil
}
