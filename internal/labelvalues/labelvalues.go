// Package labelvalues bounds the values of Prometheus labels that come from messages, which may contain any text, and
// any number of different ones.
package labelvalues

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
)

// Other replaces the values beyond the limit of a [Set].
const Other = "other"

// maxBytes bounds the length of a value.
const maxBytes = 128

// Clean makes a text suitable for a label: valid and short.
func Clean(text string) string {
	if len(text) > maxBytes {
		text = text[:maxBytes]
	}
	return strings.ToValidUTF8(text, "\ufffd")
}

// Set are the values that a label has had so far. It is safe for concurrent use.
type Set struct {
	limit int
	known atomic.Pointer[map[string]struct{}]
	mu    sync.Mutex // for adding
}

// NewSet makes a Set for that many values.
func NewSet(limit int) *Set {
	s := &Set{limit: limit}
	s.known.Store(&map[string]struct{}{})
	return s
}

// Bound returns the value to use for the label. Only a new one takes a lock, and the set never shrinks: a flood of
// names takes none.
func (s *Set) Bound(value string) string {
	value = Clean(value)
	if bounded, ok := s.find(value); ok {
		return bounded
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if bounded, ok := s.find(value); ok {
		return bounded
	}
	next := maps.Clone(*s.known.Load())
	next[strings.Clone(value)] = struct{}{} // not a substring that would keep a longer text alive
	s.known.Store(&next)
	return value
}

// find returns the value if it is known, or Other if there is no room for it.
func (s *Set) find(value string) (string, bool) {
	known := *s.known.Load()
	if _, ok := known[value]; ok {
		return value, true
	}
	return Other, len(known) >= s.limit
}
