// Package callers limits what one caller of the API may use of what all share, and keeps the responses to repeatable
// requests.
package callers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/problem"
)

// KeyHeader makes a request safe to repeat.
const KeyHeader = "Idempotency-Key"

// MaxKey is the longest key, in characters.
const MaxKey = 255

// Limits of the kept responses: of one caller, so that no caller displaces another one's, and of the number of callers.
const (
	keepKeys   = 24 * time.Hour
	maxKeys    = 1_000
	maxAnswers = 8 << 20 // bytes
	maxAnswer  = 1 << 20 // bytes of one
	maxCallers = 100
)

// OtherBody is the error for a key that was used before with another request.
const OtherBody = KeyHeader + " was used before with another request: a new request needs a new key"

// idempotency keeps a caller's responses to requests with a key, in memory: after a restart a repeated request is
// handled again, by the state of what it changes. Only the start of a run is still known, because its id is derived
// from the key.
type idempotency struct {
	mu       sync.Mutex
	answers  map[[32]byte]*answer
	inFlight int
	used     time.Time // last
}

// answer is the response to a request; the request is in flight until done is set. One that is too large is not kept.
type answer struct {
	request     [32]byte // digest of method, path, query and body
	done, large bool
	at          time.Time // when it was done
	status      int
	header      http.Header
	body        []byte
}

// Answers are the kept responses by caller. The role is part of the identity: a caller that lost a role gets no
// response from before.
type Answers struct {
	mu       sync.Mutex
	byCaller map[string]*idempotency
}

// NewAnswers makes empty Answers.
func NewAnswers() *Answers { return &Answers{byCaller: map[string]*idempotency{}} }

// keys are the kept responses of a caller. Unauthenticated callers choose their names, so they share one set.
func (c *Answers) keys(who *access.Principal) *idempotency {
	identity := who.Identity()
	if who.Unproven {
		identity = "unproven"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byCaller[identity] == nil {
		if len(c.byCaller) >= maxCallers {
			delete(c.byCaller, oldest(c.byCaller, (*idempotency).idle)) // none if all have requests in flight
		}
		c.byCaller[identity] = &idempotency{answers: map[[32]byte]*answer{}}
	}
	c.byCaller[identity].used = time.Now()
	return c.byCaller[identity]
}

// idle is when a caller was last seen; zero if it has a request in flight, whose repetition would be handled, too.
func (i *idempotency) idle() (since time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.inFlight == 0 {
		since = i.used
	}
	return since
}

// oldest is the key of the value with the earliest time that is not zero.
func oldest[K comparable, V any](all map[K]V, at func(V) time.Time) (key K) {
	var first time.Time
	for k, v := range all {
		if t := at(v); !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first, key = t, k
		}
	}
	return key
}

// Idempotent gives a repeated request with a key the same response as the first, if it is repeatable. bodyLimit is the
// maximum body size.
func (c *Answers) Idempotent(bodyLimit int64, repeatable func(*http.Request) bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get(KeyHeader)
		if key == "" || !repeatable(r) {
			next.ServeHTTP(w, r)
			return
		}
		if len(key) > MaxKey || strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c > '~' }) {
			problem.Write(w, r, http.StatusBadRequest, KeyHeader+": 1 to 255 visible ASCII characters, such as a UUID")
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyLimit))
		if err != nil {
			if _, large := errors.AsType[*http.MaxBytesError](err); large {
				problem.Write(w, r, http.StatusRequestEntityTooLarge, "request body is too large")
			} else {
				problem.Write(w, r, http.StatusBadRequest, "the body could not be read")
			}
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		who := access.From(r.Context())
		keys, name := c.keys(&who), digest(who.Identity(), key)
		request := digest(r.Method, r.URL.Path, r.URL.RawQuery, r.Header.Get("If-Match"), string(body))
		found, begun := keys.begin(name, request)
		switch {
		case begun:
		case found.request != request:
			problem.Write(w, r, http.StatusUnprocessableEntity, OtherBody)
			return
		case !found.done:
			w.Header().Set("Retry-After", "1")
			problem.Write(w, r, http.StatusConflict,
				"the first request with this "+KeyHeader+" is still in progress: try again later")
			return
		case found.large:
			problem.Write(w, r, http.StatusConflict,
				"the first request with this "+KeyHeader+" is done, but its answer was too large to be kept")
			return
		default:
			maps.Copy(w.Header(), found.header)
			w.Header().Set("Idempotent-Replayed", "true")
			w.WriteHeader(found.status)
			_, _ = w.Write(found.body) // the client disconnected: no reader is left for the error
			return
		}
		kept := &recorder{ResponseWriter: w, status: http.StatusOK}
		defer func() { keys.finish(name, found, kept) }() // also after a panic
		next.ServeHTTP(kept, r)
		kept.complete = true
	})
}

// begin finds the response for a key, or records that the request with it has begun.
func (i *idempotency) begin(name, request [32]byte) (found *answer, begun bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if found = i.answers[name]; found != nil && (!found.done || time.Since(found.at) < keepKeys) {
		return found, false
	}
	found = &answer{request: request}
	i.answers[name] = found
	i.inFlight++
	return found, true
}

// size is how many bytes are kept.
func (i *idempotency) size() (bytes int) {
	for _, a := range i.answers {
		bytes += len(a.body)
	}
	return bytes
}

// finish keeps a response, and forgets the oldest beyond the limits, but no request in flight: its repetition would be
// handled, too. One that is not about the request itself is not kept, so that it can be retried.
func (i *idempotency) finish(name [32]byte, a *answer, r *recorder) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.inFlight--
	temporary := r.status >= 500 || r.status == http.StatusTooManyRequests || r.status == http.StatusRequestTimeout ||
		r.status == http.StatusUnauthorized || r.status == http.StatusForbidden
	if temporary || !r.complete {
		delete(i.answers, name)
		return
	}
	a.done, a.at, a.status, a.header, a.large = true, time.Now(), r.status, r.header, r.size > maxAnswer
	if !a.large {
		a.body = r.body.Bytes()
	}
	for len(i.answers) > maxKeys || i.size() > maxAnswers {
		name = oldest(i.answers, func(a *answer) time.Time { return a.at })
		if i.answers[name] == nil {
			return
		}
		delete(i.answers, name)
	}
}

// recorder copies a response while it is written.
type recorder struct {
	http.ResponseWriter
	status   int
	header   http.Header
	body     bytes.Buffer // up to maxAnswer
	size     int
	complete bool
}

// WriteHeader records status and headers.
func (r *recorder) WriteHeader(status int) {
	if r.header == nil {
		r.status, r.header = status, r.Header().Clone()
	}
	r.ResponseWriter.WriteHeader(status)
}

// Write records what is written.
func (r *recorder) Write(p []byte) (int, error) {
	if r.header == nil {
		r.header = r.Header().Clone()
	}
	if r.size += len(p); r.size <= maxAnswer {
		r.body.Write(p)
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func digest(parts ...string) [32]byte {
	h := sha256.New()
	for _, part := range parts {
		sum := sha256.Sum256([]byte(part))
		h.Write(sum[:])
	}
	return [32]byte(h.Sum(nil))
}

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
