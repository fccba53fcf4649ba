package middleware

import (
	"bytes"
	"iter"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// snapshot remembers a message as it was received, so that retries and dead letters do not depend on what the handler
// did to it: decrypt in place, replace the payload, add headers. It costs a copy of the payload and a walk over the
// headers, and no allocation: it is part of the pooled run. The headers are copied as text, because each string stored
// on the heap costs the garbage collector more than the copy while it runs.
type snapshot struct {
	uuid    string
	payload message.Payload // the original slice
	noMap   bool
	bytes   []byte // the payload's content
	headers []byte // keys and values, one behind the other
	lengths []int  // of each of them
}

// maxPooled keeps one huge message from pinning its size in the pool.
const maxPooled = 1 << 20

// take also reads the control data of a new message that we made, since it walks over the headers anyway. For others it
// reports false, and the caller reads the control data, because both frames together do not fit into a new goroutine's
// stack.
func (s *snapshot) take(m *message.Message, c *envelope.Control) bool {
	s.uuid, s.payload, s.noMap = m.UUID, m.Payload, m.Metadata == nil
	s.bytes = append(s.bytes[:0], m.Payload...)
	var id string
	binary, state := false, false
	headers, lengths := s.headers, s.lengths // a slice that stays on the stack costs the collector nothing
	for k, v := range m.Metadata {
		headers = append(append(headers, k...), v...)
		lengths = append(lengths, len(k), len(v))
		switch k {
		case envelope.KeyVersion:
			binary = v != ""
		case envelope.KeyMessageID:
			id = v
		case envelope.KeyRetryCount:
			state = state || v != "0"
		case envelope.KeyRedriveID, envelope.KeyOriginalDelay, envelope.KeyWatermillDelayedFor, envelope.KeyDelay:
			state = true
		}
	}
	s.headers, s.lengths = headers, lengths
	if binary && !state && isPlain(id) {
		// A new message of ours carries nothing else, and it is by far the most frequent one.
		c.MessageID = id
		return true
	}
	return false
}

// isPlain reports whether [envelope.Identify] would leave the id unchanged.
func isPlain(id string) bool {
	if len(id) == 0 || len(id) > 64 {
		return false
	}
	for i := range len(id) {
		if id[i]-'!' > '~'-'!' { // one comparison for both ends
			return false
		}
	}
	return true
}

// free prepares s for another message.
func (s *snapshot) free() {
	s.uuid, s.payload = "", nil
	s.headers, s.lengths = s.headers[:0], s.lengths[:0]
	if cap(s.bytes)+cap(s.headers) > maxPooled {
		s.bytes, s.headers = nil, nil
	}
}

// restore makes m what it was again. Unchanged parts are left alone; changed ones are replaced, not repaired, since the
// handler may have kept the map or the slice.
func (s *snapshot) restore(m *message.Message) {
	m.UUID = s.uuid
	m.Payload = s.payload
	if !bytes.Equal(s.payload, s.bytes) {
		m.Payload, s.bytes = s.bytes, nil
	}
	if s.sameHeaders(m.Metadata) {
		return
	}
	m.Metadata = nil
	if !s.noMap {
		m.Metadata = make(message.Metadata, len(s.lengths)/2)
	}
	for key, value := range s.all() {
		m.Metadata[string(key)] = string(value)
	}
}

// all are the headers as they were received.
func (s *snapshot) all() iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		rest := s.headers
		for i := 0; i < len(s.lengths); i += 2 {
			k, v := s.lengths[i], s.lengths[i+1]
			if !yield(rest[:k], rest[k:k+v]) {
				return
			}
			rest = rest[k+v:]
		}
	}
}

func (s *snapshot) sameHeaders(md message.Metadata) bool {
	if len(md) != len(s.lengths)/2 || (md == nil) != s.noMap {
		return false
	}
	for key, value := range s.all() {
		if v, ok := md[string(key)]; !ok || v != string(value) {
			return false
		}
	}
	return true
}
