package callers

import (
	"fmt"
	"sync"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
)

// Streams limits the open progress streams: in total, per caller, and of everyone but admins, for whom some are
// reserved so that other callers cannot lock them out.
type Streams struct {
	all, each, reserve int

	mu    sync.Mutex
	of    map[string]int
	total int
}

// NewStreams allows this many in total.
func NewStreams(all int) *Streams {
	return &Streams{all: all, each: max(1, all/10), reserve: all / 10, of: map[string]int{}}
}

// Open takes a slot and returns "", or explains why none is free.
func (s *Streams) Open(who *access.Principal) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	if !who.Role.Allows(access.Admin) {
		all -= s.reserve
	}
	switch {
	case s.total >= all:
		return fmt.Sprintf("%d streams are open, which is all that this server has", s.total)
	case s.of[who.Identity()] >= s.each:
		return fmt.Sprintf("you have %d streams open, which is all that one caller may have", s.each)
	}
	s.total++
	s.of[who.Identity()]++
	return ""
}

// Close frees a slot.
func (s *Streams) Close(who *access.Principal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.of[who.Identity()]--; s.of[who.Identity()] == 0 {
		delete(s.of, who.Identity())
	}
}
