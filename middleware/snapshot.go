package middleware

import (
	"bytes"
	"iter"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// snapshot remembers a message as it was received, so that what is retried or dead-lettered does not depend on what
// the handler did to it: decrypt in place, replace the payload, add headers. Keeping it costs a copy of the payload and
// a walk over the headers, and no allocation: it lives on the stack of the delivery, with the first headers, because a
// string that is put on the heap there has to be told to the garbage collector; the rest is in pooled memory.
type snapshot struct {
	uuid    string
	payload message.Payload // the slice as it came
	noMap   bool
	count   int // of headers
	headers [inlineHeaders]header
	spill   *spill
}

type header struct{ key, value string }

// inlineHeaders is more than what the envelope, a trace and a few of the user's own headers take.
const inlineHeaders = 12

// spill is the part of a snapshot that has no fixed size.
type spill struct {
	bytes   []byte   // the payload's content
	headers []header // those behind the inline ones
}

var spills = sync.Pool{New: func() any { return new(spill) }}

// maxPooled keeps one huge message from pinning its size in the pool.
const maxPooled = 1 << 20

// take also reads the control data, as it walks over the headers anyway.
func (s *snapshot) take(m *message.Message, c *envelope.Control) error {
	s.uuid, s.payload, s.noMap = m.UUID, m.Payload, m.Metadata == nil
	s.spill = spills.Get().(*spill)
	s.spill.bytes = append(s.spill.bytes[:0], m.Payload...)
	var id, redrive string
	binary, state := false, false
	for k, v := range m.Metadata {
		if s.count < inlineHeaders {
			s.headers[s.count] = header{k, v}
		} else {
			s.spill.headers = append(s.spill.headers, header{k, v})
		}
		s.count++
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
		return nil
	}
	var err error
	*c, err = envelope.ReadControl(m)
	return err
}

// isPlain reports whether an id is one that [envelope.Identify] leaves as it is.
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

// free gives the pooled memory back. Nothing may use s afterwards.
func (s *snapshot) free() {
	s.spill.headers = s.spill.headers[:0] // not cleared: the pool keeps one message's headers alive, until the collector empties it
	if cap(s.spill.bytes) > maxPooled {
		s.spill.bytes = nil
	}
	spills.Put(s.spill)
	s.spill = nil
}

// restore makes m what it was again and frees s. What has not changed is left alone. What has is replaced, not
// repaired: the handler may have kept the map or the slice.
func (s *snapshot) restore(m *message.Message) {
	m.UUID = s.uuid
	m.Payload = s.payload
	if !bytes.Equal(s.payload, s.spill.bytes) {
		m.Payload, s.spill.bytes = s.spill.bytes, nil
	}
	if !s.sameHeaders(m.Metadata) {
		m.Metadata = nil
		if !s.noMap {
			m.Metadata = make(message.Metadata, s.count)
		}
		for h := range s.all() {
			m.Metadata[h.key] = h.value
		}
	}
	s.free()
}

// all are the headers as they were received.
func (s *snapshot) all() iter.Seq[header] {
	return func(yield func(header) bool) {
		for i := range min(s.count, inlineHeaders) {
			if !yield(s.headers[i]) {
				return
			}
		}
		for _, h := range s.spill.headers {
			if !yield(h) {
				return
			}
		}
	}
}

func (s *snapshot) sameHeaders(md message.Metadata) bool {
	if len(md) != s.count || (md == nil) != s.noMap {
		return false
	}
	for h := range s.all() {
		if v, ok := md[h.key]; !ok || v != h.value {
			return false
		}
	}
	return true
}
