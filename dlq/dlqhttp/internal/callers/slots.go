package callers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/problem"
)

// ErrFull means that the caller has to wait until something else has ended.
var ErrFull = errors.New("too many at the same time")

// Slots limits what runs at the same time: in total, per caller, and of everyone but admins, for whom some are
// reserved so that other callers cannot lock them out.
type Slots struct {
	what               string
	all, each, reserve int
	wait               time.Duration

	mu       sync.Mutex
	byCaller map[string]int
	total    int
	freed    chan struct{} // closed when a slot is freed
}

// NewSlots allows this many in total and per caller, and reserves some for admins. what names them in the plural, wait
// is how long to wait for a slot.
func NewSlots(what string, all, each, reserve int, wait time.Duration) *Slots {
	return &Slots{
		what: what, all: all, each: each, reserve: reserve, wait: wait, byCaller: map[string]int{},
		freed: make(chan struct{}),
	}
}

// Take takes a slot, which free frees. The error wraps [ErrFull] if there was none in time.
func (s *Slots) Take(ctx context.Context, who access.Principal) (free func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, s.wait)
	defer cancel()
	all, identity := s.all, who.Identity()
	if !who.Role.Allows(access.Admin) {
		all -= s.reserve
	}
	for {
		freed, err := s.take(identity, all)
		if err == nil {
			return func() { s.free(identity) }, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// take takes a slot if there is one; otherwise freed is closed when it is worth another attempt.
func (s *Slots) take(identity string, all int) (freed <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.total >= all:
		return s.freed, fmt.Errorf("%w: %d %s are running, the most that this server allows", ErrFull, s.total, s.what)
	case s.byCaller[identity] >= s.each:
		return s.freed, fmt.Errorf("%w: %d of your %s are running, the most that one caller may have", ErrFull, s.each,
			s.what)
	}
	s.total++
	s.byCaller[identity]++
	return nil, nil
}

func (s *Slots) free(identity string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.byCaller[identity]--; s.byCaller[identity] == 0 {
		delete(s.byCaller, identity)
	}
	close(s.freed)
	s.freed = make(chan struct{})
}

// smallBody is the largest body, in bytes, of which a caller may send any number at the same time.
const smallBody = 16 << 10

// LimitBodies takes a slot for each request whose body is large, or of unknown size: it is in memory until the request
// is answered, unless it is streamed.
func (s *Slots) LimitBodies(streamed func(*http.Request) bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		small := r.ContentLength >= 0 && r.ContentLength <= smallBody
		if r.Method == http.MethodGet || small || streamed(r) {
			next.ServeHTTP(w, r)
			return
		}
		free, err := s.Take(r.Context(), access.From(r.Context()))
		if err != nil {
			w.Header().Set("Retry-After", "5")
			problem.Write(w, r, http.StatusTooManyRequests, err.Error())
			return
		}
		defer free()
		next.ServeHTTP(w, r)
	})
}
