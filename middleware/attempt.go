package middleware

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redrive-go/redrive/envelope"
)

// Tag is which of a message's runs an attempt is, in three values, for metrics and logs.
type Tag string

const (
	// TagFirst is the first attempt, also where it is the only one.
	TagFirst Tag = "first"
	// TagRetry is an attempt after which there may be more.
	TagRetry Tag = "retry"
	// TagLast is the attempt after which the message is dead-lettered.
	TagLast Tag = "last"
)

// Attempt describes one run of a handler. [AttemptFrom] gives it to the handler.
type Attempt struct {
	// Number counts from 1.
	Number int
	// Max is the limit that applies to this message. It is Number for a message whose retry counter is unreadable.
	Max int
	// Tag is the attempt's place among the others.
	Tag Tag
	// MessageID is the same in every attempt: the key for idempotent handlers.
	MessageID string
	// OriginalDelay is the message's first-delivery delay; 0 when it had none.
	OriginalDelay time.Duration
	// RedriveID is the dead letter that this delivery was redriven from, or "".
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

// limitOf is one for a message whose counter is unreadable: treated as 0, it could loop forever.
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
// of a pipeline.
func AttemptFrom(ctx context.Context) (Attempt, bool) {
	c, ok := ctx.Value(attemptKey{}).(*attemptContext)
	if !ok {
		return Attempt{}, false
	}
	return c.attempt(), true
}

// attemptContext is a context with a deadline that costs one allocation. Most handlers finish without asking for Done,
// and the timer, the channel and the registration with the parent that context.WithTimeout sets up are most of what a
// chain of middlewares costs. They are made at the first call of Done.
type attemptContext struct {
	parent   context.Context
	deadline time.Time // zero for none
	control  envelope.Control
	limit    int // the attempts that this message has

	// live is nil until Done is needed, then a real context with the same deadline. Once the handler has returned it
	// is ended, unless there was none: then it becomes ended, so that who kept the context finds it over.
	live atomic.Pointer[liveContext]
}

type liveContext struct {
	context.Context
	cancel context.CancelFunc
}

// ended replaces the live context of attempts that were over before Done was called.
var ended = func() *liveContext {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return &liveContext{ctx, cancel}
}()

// Deadline is known at once.
func (c *attemptContext) Deadline() (time.Time, bool) {
	if at, ok := c.parent.Deadline(); ok && (c.deadline.IsZero() || at.Before(c.deadline)) {
		return at, true
	}
	return c.deadline, !c.deadline.IsZero()
}

// Done makes the live context.
func (c *attemptContext) Done() <-chan struct{} { return c.wake().Done() }

// Err is right against the clock even though no timer runs. As soon as it has an error to tell the live context is
// made, which keeps the answer the same from then on.
func (c *attemptContext) Err() error {
	if live := c.live.Load(); live != nil {
		return live.Err()
	}
	if c.parent.Err() == nil && (c.deadline.IsZero() || time.Now().Before(c.deadline)) {
		return nil
	}
	return c.wake().Err()
}

// Value hands the question to the live context when there is one. That is how the context package finds it: children
// then register with it directly instead of starting a goroutine each.
func (c *attemptContext) Value(key any) any {
	if key == (attemptKey{}) {
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
