package envelope

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Option sets a property of a new envelope.
type Option func(*creation)

type creation struct {
	id    string
	at    time.Time
	mode  Mode
	delay *time.Duration
	event string
	meta  map[string]any
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
	return func(c *creation) { c.meta[key] = value }
}

// New returns the envelope of a new message. source is the service that creates it and queue the destination. data may
// be anything that encoding/json supports; []byte and json.RawMessage are used unchanged, JSON or not. metadata holds
// extras such as priority and correlation_id and may be nil; see Meta for values that are not strings.
//
// The error names everything that is wrong: an empty queue, data that cannot be encoded, metadata under a name that
// belongs to the envelope (IsOurs).
func New(source, queue string, data any, metadata map[string]string, opts ...Option) (Envelope, error) {
	c := creation{id: NewID(), at: time.Now().Truncate(time.Second), meta: map[string]any{}}
	for _, opt := range opts {
		opt(&c)
	}
	payload, err := encodeData(data)
	var faults []error
	if err != nil {
		faults = append(faults, fmt.Errorf("envelope: new: data: %w", err))
	}
	faults = append(faults, c.validate(source, queue)...)
	for key := range metadata {
		faults = append(faults, reservedName("new: ", key))
	}
	values, err := c.metadata()
	faults = append(faults, err)
	if err := errors.Join(faults...); err != nil {
		return Envelope{}, err
	}

	headers := make(message.Metadata, len(metadata)+len(values)+8)
	maps.Copy(headers, metadata)
	for key, v := range values {
		v.set(headers, key)
	}
	headers[KeyMessageID] = c.id
	headers[KeyTimestamp] = formatTimestamp(c.at)
	headers[KeyVersion] = LayoutVersion
	headers[KeyQueue] = queue
	setOrDelete(headers, KeySource, source)
	setOrDelete(headers, KeyEvent, c.event)
	if c.delay != nil {
		m := message.Message{Metadata: headers}
		SetDelay(&m, *c.delay)
	}
	return Envelope{want: c.mode, uuid: c.id, headers: headers, payload: payload}, nil
}

// metadata encodes the values added by Meta.
func (c *creation) metadata() (map[string]entry, error) {
	var faults []error
	entries := make(map[string]entry, len(c.meta))
	for _, key := range slices.Sorted(maps.Keys(c.meta)) {
		v, err := entryOf(c.meta[key])
		if err != nil {
			err = fmt.Errorf("envelope: new: metadata %q: %w", key, err)
		} else {
			err = reservedName("new: ", key)
		}
		entries[key], faults = v, append(faults, err)
	}
	return entries, errors.Join(faults...)
}

func (c *creation) validate(source, queue string) (faults []error) {
	if queue == "" {
		faults = append(faults, errors.New("envelope: new: queue is empty; name the destination"))
	}
	for _, f := range [...]struct{ name, value string }{
		{"source", source},
		{"queue", queue},
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
