package middleware

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrNotYet is for handlers that [Defer] a message and have no specific error.
	ErrNotYet = errors.New("not yet")
	// ErrExhausted is matched by the error of a message that has used up its attempts.
	ErrExhausted = errors.New("attempts exhausted")
	// ErrExpired is matched by the error of a message that is too old to be retried or deferred again.
	ErrExpired = errors.New("message expired")
	// ErrCircuitOpen is matched by the error of a message whose circuit breaker was open.
	ErrCircuitOpen = errors.New("circuit open")
	// ErrGivenBack is matched by the error with which a pipeline returns a message to the broker because the consumer is
	// shutting down or has lost the message. It also matches context.Canceled, which keeps Watermill's router from logging
	// it.
	ErrGivenBack = errors.New("message returned")
	// ErrNotSettled is matched by the error that a pipeline returns if neither the retry nor the dead letter could be
	// published: the message is nacked, after a pause, because losing it is worse than running it twice.
	ErrNotSettled = errors.New("message could not be settled")
	// ErrGoexit is matched by the error of a handler that ended its goroutine, for example by calling t.FailNow.
	ErrGoexit = errors.New("handler called runtime.Goexit")
)

// ExhaustedError reports after how many attempts a message was given up. It matches [ErrExhausted] and unwraps to the
// last attempt's error.
type ExhaustedError struct {
	Attempts int
	Err      error
}

// Error returns the number of attempts and the last error.
func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("gave up after %d attempts: %s", e.Attempts, errorText(e.Err))
}

// Is reports whether target is [ErrExhausted].
func (e *ExhaustedError) Is(target error) bool { return target == ErrExhausted }

// Unwrap returns the last attempt's error.
func (e *ExhaustedError) Unwrap() error { return e.Err }

// ExpiredError reports that a message was too old to be retried or deferred again. It matches [ErrExpired] and unwraps
// to the last error.
type ExpiredError struct {
	// Age is the message's age at its next attempt, or how long it has been deferred.
	Age time.Duration
	// Limit is [HandlerConfig.MaxAge] or [Config.MaxDeferAge].
	Limit time.Duration
	Err   error
}

// Error returns the age, the limit and the last error.
func (e *ExpiredError) Error() string {
	return fmt.Sprintf("expired at an age of %s, more than %s: %s", e.Age, e.Limit, errorText(e.Err))
}

// Is reports whether target is [ErrExpired].
func (e *ExpiredError) Is(target error) bool { return target == ErrExpired }

// Unwrap returns the last error.
func (e *ExpiredError) Unwrap() error { return e.Err }

// CircuitOpenError identifies the open circuit and how long it stays open. It matches [ErrCircuitOpen].
type CircuitOpenError struct {
	Key       string
	Remaining time.Duration
}

// Error returns the circuit's key and the remaining time.
func (e *CircuitOpenError) Error() string {
	return fmt.Sprintf("circuit of %q is open for another %s", e.Key, e.Remaining)
}

// Is reports whether target is [ErrCircuitOpen].
func (e *CircuitOpenError) Is(target error) bool { return target == ErrCircuitOpen }
