package middleware

import (
	"bytes"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
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

func takeSnapshot(m *message.Message) *snapshot {
	s := snapshots.Get().(*snapshot)
	s.uuid, s.payload, s.noMap = m.UUID, m.Payload, m.Metadata == nil
	s.bytes = append(s.bytes[:0], m.Payload...)
	for k, v := range m.Metadata {
		s.headers = append(s.headers, header{k, v})
	}
	return s
}

// free gives the memory back. Nothing may use s afterwards.
func (s *snapshot) free() {
	s.payload = nil
	clear(s.headers) // the strings must not be kept alive by the pool
	s.headers = s.headers[:0]
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
