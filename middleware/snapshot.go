package middleware

import (
	"bytes"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// snapshot remembers a message as it was received, so that what is retried or dead-lettered does not depend on what
// the handler did to it: decrypt in place, replace the payload, add headers. Its memory is pooled; keeping it costs a
// copy of the payload and a walk over the headers, and no allocation.
type snapshot struct {
	uuid    string
	payload message.Payload // the slice as it came
	bytes   []byte          // its content
	headers []header
	noMap   bool
}

type header struct{ key, value string }

var snapshots = sync.Pool{New: func() any { return new(snapshot) }}

// maxPooled keeps one huge message from pinning its size in the pool.
const maxPooled = 1 << 20

// takeSnapshot also reads the control data, as it walks over the headers anyway.
func takeSnapshot(m *message.Message, c *envelope.Control) (*snapshot, error) {
	s := snapshots.Get().(*snapshot)
	s.uuid, s.payload, s.noMap = m.UUID, m.Payload, m.Metadata == nil
	s.bytes = append(s.bytes[:0], m.Payload...)
	var id, redrive string
	binary, state := false, false
	s.headers = slices.Grow(s.headers[:0], len(m.Metadata))
	for k, v := range m.Metadata {
		s.headers = append(s.headers, header{k, v})
		switch k {
		case envelope.KeyVersion:
			binary = v != ""
		case envelope.KeyMessageID:
			id = v
		case envelope.KeyRedriveID:
			redrive = v
		case envelope.KeyRetryCount:
			state = state || v != "0"
		case envelope.KeyOriginalDelay, envelope.KeyWatermillDelayedFor:
			state = true
		}
	}
	if binary && !state && isPlain(id) {
		// A new message of our own making says no more than this, and it is by far the most frequent one.
		c.MessageID, c.RedriveID = id, redrive
		return s, nil
	}
	var err error
	*c, err = envelope.ReadControl(m)
	return s, err
}

// isPlain reports whether an id is one that [envelope.Identify] leaves as it is.
func isPlain(id string) bool {
	if len(id) == 0 || len(id) > 64 {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] >= 0x7f {
			return false
		}
	}
	return true
}

// free gives the memory back. Nothing may use s afterwards.
func (s *snapshot) free() {
	s.payload = nil
	s.headers = s.headers[:0] // not cleared: the pool keeps one message's headers alive, until the collector empties it
	if cap(s.bytes) > maxPooled {
		s.bytes = nil
	}
	snapshots.Put(s)
}

// restore makes m what it was again and frees s. What has not changed is left alone. What has is replaced, not
// repaired: the handler may have kept the map or the slice.
func (s *snapshot) restore(m *message.Message) {
	m.UUID = s.uuid
	m.Payload = s.payload
	if !bytes.Equal(s.payload, s.bytes) {
		m.Payload, s.bytes = s.bytes, nil
	}
	if !s.sameHeaders(m.Metadata) {
		m.Metadata = nil
		if !s.noMap {
			m.Metadata = make(message.Metadata, len(s.headers))
		}
		for _, h := range s.headers {
			m.Metadata[h.key] = h.value
		}
	}
	s.free()
}

func (s *snapshot) sameHeaders(md message.Metadata) bool {
	if len(md) != len(s.headers) || (md == nil) != s.noMap {
		return false
	}
	for _, h := range s.headers {
		if v, ok := md[h.key]; !ok || v != h.value {
			return false
		}
	}
	return true
}
