package callers

import (
	"errors"
	"fmt"
	"sync"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
)

// ErrFull means that the caller has to wait until something else has ended.
var ErrFull = errors.New("too many at the same time")

// Slots limits what runs at the same time: in total, per caller, and of everyone but admins, for whom some are
// reserved so that other callers cannot lock them out.
type Slots struct {
	what               string
	all, each, reserve int

	mu       sync.Mutex
	byCaller map[string]int
	total    int
}

// NewSlots allows this many in total and per caller, and reserves some for admins. what names them in the plural.
func NewSlots(what string, all, each, reserve int) *Slots {
	return &Slots{what: what, all: all, each: each, reserve: reserve, byCaller: map[string]int{}}
}

// Take takes a slot, which free frees. The error wraps [ErrFull] if there is none.
func (s *Slots) Take(who access.Principal) (free func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, identity := s.all, who.Identity()
	if !who.Role.Allows(access.Admin) {
		all -= s.reserve
	}
	switch {
	case s.total >= all:
		return nil, fmt.Errorf("%w: %d %s are running, the most that this server allows", ErrFull, s.total, s.what)
	case s.byCaller[identity] >= s.each:
		return nil, fmt.Errorf("%w: %d of your %s are running, the most that one caller may have", ErrFull, s.each, s.what)
	}
	s.total++
	s.byCaller[identity]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.total--
		if s.byCaller[identity]--; s.byCaller[identity] == 0 {
			delete(s.byCaller, identity)
		}
	}, nil
}
