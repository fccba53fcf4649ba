package middleware

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/redrive-go/redrive/envelope"
)

// Tag is an attempt's position among the runs of its message, in three values, for metrics and logs.
type Tag string

const (
	// TagFirst is the first attempt, even if it is the only one.
	TagFirst Tag = "first"
	// TagRetry is a later attempt that may be followed by more.
	TagRetry Tag = "retry"
	// TagLast is the attempt after which the message is dead-lettered.
	TagLast Tag = "last"
)

// Attempt describes one run of a handler. Handlers get it from [AttemptFrom].
type Attempt struct {
	// Number counts from 1.
	Number int
	// Max is the limit for this message. It equals Number for a message whose retry counter is unreadable.
	Max int
	// Tag is the attempt's position among the others.
	Tag Tag
	// MessageID is the same in every attempt: the key for idempotent handlers.
	MessageID string
	// OriginalDelay is the message's first-delivery delay; 0 if it had none.
	OriginalDelay time.Duration
	// RedriveID is the dead letter from which this delivery was redriven, or "".
	RedriveID string
}

// IsLast reports whether a failure of this attempt would be the last.
func (a Attempt) IsLast() bool { return a.Number >= a.Max }

// String returns "attempt 2 of 4".
func (a Attempt) String() string { return fmt.Sprintf("attempt %d of %d", a.Number, a.Max) }

func (c *attemptContext) attempt() Attempt {
	number := c.control.RetryCount + 1
	return Attempt{
		Number:        number,
		Max:           c.limit,
		Tag:           tagOf(number, c.limit),
		MessageID:     c.control.MessageID,
		OriginalDelay: c.control.OriginalDelay,
		RedriveID:     c.control.RedriveID,
	}
}

// limitOf is 1 for a message with an unreadable counter: treated as 0, it could loop forever.
func limitOf(c *envelope.Control, p *policy) int {
	if c.RetryCountInvalid {
		return 1
	}
	return p.MaxAttempts
}

func tagOf(number, limit int) Tag {
	switch {
	case number <= 1:
		return TagFirst
	case number >= limit:
		return TagLast
	default:
		return TagRetry
	}
}

type attemptKey struct{}

// AttemptFrom returns the attempt that ctx, a message's context inside a handler, belongs to. It reports false outside
// a pipeline.
func AttemptFrom(ctx context.Context) (Attempt, bool) {
	c, ok := ctx.Value(attemptKey{}).(*attemptContext)
	if !ok {
		return Attempt{}, false
	}
	return c.attempt(), true
}

// attemptContext is a context with a deadline that costs one allocation. Most handlers finish without calling Done, and
// the timer, the channel and the registration with the parent that context.WithTimeout sets up are most of the cost of
// a chain of middlewares. They are created by the first call of Done.
type attemptContext struct {
	parent   context.Context
	deadline time.Time // zero if there is none
	control  envelope.Control
	limit    int // the maximum number of attempts of this message; 0 for a context that is only a deadline

	// live is nil until Done is needed, then a real context with the same deadline. When the handler has returned, it is
	// canceled; if there was none it becomes ended, so that code that kept the context finds it over.
	live atomic.Pointer[liveContext]
}

type liveContext struct {
	context.Context
	cancel context.CancelFunc
}

// ended replaces the live context of attempts that ended before Done was called.
var ended = func() *liveContext {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return &liveContext{ctx, cancel}
}()

// Deadline needs no live context.
func (c *attemptContext) Deadline() (time.Time, bool) {
	if at, ok := c.parent.Deadline(); ok && (c.deadline.IsZero() || at.Before(c.deadline)) {
		return at, true
	}
	return c.deadline, !c.deadline.IsZero()
}

// Done creates the live context.
func (c *attemptContext) Done() <-chan struct{} { return c.wake().Done() }

// Err compares the deadline with the clock, since no timer may be running. Once it has an error to return it creates
// the live context, which keeps the answer the same from then on.
func (c *attemptContext) Err() error {
	if live := c.live.Load(); live != nil {
		return live.Err()
	}
	if c.parent.Err() == nil && (c.deadline.IsZero() || time.Now().Before(c.deadline)) {
		return nil
	}
	return c.wake().Err()
}

// Value asks the live context if there is one. The context package finds it that way: children then register with it
// directly instead of starting a goroutine each.
func (c *attemptContext) Value(key any) any {
	if key == (attemptKey{}) && c.limit > 0 {
		return c
	}
	if live := c.live.Load(); live != nil && live != ended {
		return live.Value(key)
	}
	return c.parent.Value(key)
}

// String keeps %v of a context from printing the message.
func (c *attemptContext) String() string {
	return fmt.Sprintf("%v.Attempt(%d)", c.parent, c.control.RetryCount+1)
}

func (c *attemptContext) wake() *liveContext {
	if live := c.live.Load(); live != nil {
		return live
	}
	live := new(liveContext)
	if c.deadline.IsZero() {
		live.Context, live.cancel = context.WithCancel(c.parent)
	} else {
		live.Context, live.cancel = context.WithDeadline(c.parent, c.deadline)
	}
	if !c.live.CompareAndSwap(nil, live) {
		live.cancel() // another goroutine was faster, or the handler has returned
		return c.live.Load()
	}
	return live
}

// release ends the context and everything derived from it. It is called when the handler has returned.
func (c *attemptContext) release() {
	if !c.live.CompareAndSwap(nil, ended) {
		c.live.Load().cancel()
	}
}

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
