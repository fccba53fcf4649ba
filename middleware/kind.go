package middleware

import (
	"fmt"
	"time"
)

// Kind is what an error means for its message. It is the result of classification; what happens then also depends on
// the limits and on [Config.OnPermanent] and [Config.OnUnknown]: see [Outcome].
type Kind int

const (
	// KindUnknown is an error that matches no rule. It is retried unless [Config.OnUnknown] specifies otherwise.
	KindUnknown Kind = iota
	// KindRetryable is an error that may be gone at the next attempt.
	KindRetryable
	// KindPermanent is an error that no retry can fix: the message is dead-lettered at once.
	KindPermanent
	// KindSkip is an error that settles the message: it is logged, counted and acked.
	KindSkip
	// KindDefer means that it is too early: the message is redelivered later and no attempt is consumed.
	KindDefer
)

// String returns the name of k.
func (k Kind) String() string {
	switch k {
	case KindUnknown:
		return "unknown"
	case KindRetryable:
		return "retryable"
	case KindPermanent:
		return "permanent"
	case KindSkip:
		return "skip"
	case KindDefer:
		return "defer"
	default:
		return fmt.Sprintf("Kind(%d)", int(k))
	}
}

// MarkedError is an error that the handler has marked with its meaning. It is created by [Permanent], [Retryable],
// [Skip], [Defer] and [RetryAfter], has the text of the error that it wraps, and unwraps to it for errors.Is and
// errors.As. If marks are nested, the outermost counts.
type MarkedError struct {
	Kind Kind
	// After is the delay that the handler requests. Only [RetryAfter] and [Defer] set it.
	After time.Duration
	// HasAfter distinguishes a delay of 0 from none.
	HasAfter bool
	Err      error
}

// Error returns the text of the wrapped error.
func (e *MarkedError) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *MarkedError) Unwrap() error { return e.Err }

// Permanent marks err as an error that no retry can fix. Permanent(nil) is nil, as with all marks, so a handler may
// write: return middleware.Permanent(validate(order)).
func Permanent(err error) error { return mark(err, MarkedError{Kind: KindPermanent}) }

// Retryable marks err as worth another attempt, overriding any rule.
func Retryable(err error) error { return mark(err, MarkedError{Kind: KindRetryable}) }

// Skip marks err as settling the message: it is logged as a warning, counted and acked, and not kept anywhere.
func Skip(err error) error { return mark(err, MarkedError{Kind: KindSkip}) }

// Defer makes the message return after d without consuming an attempt, as long as [Config.MaxDeferAge] allows. A
// handler that has no specific error passes [ErrNotYet]: Defer(nil, d) is nil, which means success.
func Defer(err error, d time.Duration) error {
	return mark(err, MarkedError{Kind: KindDefer, After: max(0, d), HasAfter: true})
}

// RetryAfter marks err as retryable and sets how long to wait instead of the backoff, for example because a remote
// service specified a time. An attempt is consumed.
func RetryAfter(err error, d time.Duration) error {
	return mark(err, MarkedError{Kind: KindRetryable, After: max(0, d), HasAfter: true})
}

func mark(err error, m MarkedError) error {
	if err == nil {
		return nil
	}
	m.Err = err
	return &m
}
