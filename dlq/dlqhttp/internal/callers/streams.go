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

	mu       sync.Mutex
	byCaller map[string]int
	total    int
}

// NewStreams allows this many in total.
func NewStreams(all int) *Streams {
	return &Streams{all: all, each: max(1, all/10), reserve: all / 10, byCaller: map[string]int{}}
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
		return fmt.Sprintf("%d progress streams are open, the most that this server allows", s.total)
	case s.byCaller[who.Identity()] >= s.each:
		return fmt.Sprintf("you have %d progress streams open, the most that one caller may have", s.each)
	}
	s.total++
	s.byCaller[who.Identity()]++
	return ""
}

// Close frees a slot.
func (s *Streams) Close(who *access.Principal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.byCaller[who.Identity()]--; s.byCaller[who.Identity()] == 0 {
		delete(s.byCaller, who.Identity())
	}
}
