package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime/debug"
	"strings"
	"time"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/middleware/internal/errtree"
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
	errNacked     = errors.New("it has been nacked already")
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

// lastError is the handler's error without the limit that decided: the message carries the handler's own error, and the
// reason separately.
func lastError(err error) error {
	switch e := err.(type) { //nolint:errorlint // the pipeline itself wrapped it last
	case *ExhaustedError:
		return e.Err
	case *ExpiredError:
		return e.Err
	default:
		return err
	}
}

// transmitted is the error as recorded in the message.
func transmitted(dec *Decision) envelope.Error {
	err := lastError(dec.Err)
	return envelope.Error{
		Message: strings.ToValidUTF8(cut(errorText(err), envelope.MaxErrorMessage), "\ufffd"),
		Code:    dec.Verdict.Code,
		Trace:   errorTrace(err),
	}
}

// errorTrace is the stack of a panic, or of an error that carries one and prints it with %+v (pkg/errors).
func errorTrace(err error) string {
	return guardedValue("", func() string {
		if panicked, ok := errorAs[*PanicError](err); ok {
			return panicked.Stack
		}
		for e := err; e != nil; e = errors.Unwrap(e) {
			if _, ok := e.(fmt.Formatter); ok {
				if text := fmt.Sprintf("%+v", e); strings.Contains(text, "\n\t") {
					return strings.ToValidUTF8(cut(text, envelope.MaxErrorTrace), "\ufffd")
				}
			}
		}
		return ""
	})
}

// errorClass is the Go type of the most specific error: the outermost one that does not merely wrap another. Dead
// letters are grouped by it.
func errorClass(err error) string {
	return guardedValue(typeName(err), func() (class string) {
		_, _ = errtree.Find(lastError(err), func(e error) (uint64, bool) {
			class = typeName(e)
			return 0, !isWrapper(class)
		})
		return class
	})
}

func typeName(err error) string {
	if e, ok := err.(errtree.EndlessError); ok { //nolint:errorlint // it is never wrapped
		err = e.Whole
	}
	if t := reflect.TypeOf(err); t != nil {
		return t.String()
	}
	return "<nil>"
}

func isWrapper(class string) bool {
	switch class {
	case "*middleware.MarkedError", "*fmt.wrapError", "*fmt.wrapErrors", "*errors.joinError", "*errors.withStack",
		"*errors.withMessage":
		return true
	default:
		return false
	}
}

func stackAttrs(err error) []slog.Attr {
	panicked, ok := errorAs[*PanicError](err)
	if !ok {
		return nil
	}
	return []slog.Attr{slog.String("stack", panicked.Stack)}
}

// PanicError is a handler's panic. panic(nil) arrives as a *runtime.PanicNilError. It unwraps to the panic's value if
// that is an error.
type PanicError struct {
	Value any
	// Stack is the panicking goroutine's stack from the function that panicked, at most 4 KiB of it.
	Stack string
}

// Error returns the value's text, cut to 1 KiB, without the stack: it is used in headers and logs.
func (e *PanicError) Error() string { return "panic: " + cut(e.text(), envelope.MaxErrorMessage) }

func (e *PanicError) text() string {
	if err := e.Unwrap(); err != nil {
		return errorText(err)
	}
	return guardedValue(fmt.Sprintf("%T", e.Value), func() string { return fmt.Sprint(e.Value) })
}

// Unwrap returns the value if it is an error, so that rules and marks see it.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return errtree.Finite(err)
}

// newPanicError must be called by the deferred function that recovered value, while the stack still shows the panic.
func newPanicError(value any) *PanicError {
	stack := string(debug.Stack())
	// Above the call of panic there are only the frames of recovering from it.
	if i := strings.LastIndex(stack, "\npanic("); i >= 0 {
		if rest := strings.SplitN(stack[i+1:], "\n", 3); len(rest) == 3 {
			stack = rest[2]
		}
	}
	return &PanicError{Value: value, Stack: cut(stack, envelope.MaxErrorTrace)}
}

func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	const mark = "..."
	return strings.ToValidUTF8(s[:limit-len(mark)], "") + mark
}

// Foreign code may panic: the ports, the callbacks of the configuration, and the methods of an error, for which a typed
// nil is enough. All of it is called through this file, so that a message is settled no matter what.

// guarded calls f and returns its panic as an error.
func guarded(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = newPanicError(r)
		}
	}()
	return errtree.Finite(f())
}

// guardedValue calls f and returns otherwise if it panics.
func guardedValue[T any](otherwise T, f func() T) (value T) {
	defer func() {
		if recover() != nil {
			value = otherwise
		}
	}()
	return f()
}

// errorAs is errors.As for errors whose methods may panic.
func errorAs[E error](err error) (E, bool) {
	var found E
	ok := guardedValue(false, func() (ok bool) {
		found, ok = errors.AsType[E](err)
		return ok
	})
	return found, ok
}

// errorIs is errors.Is for errors whose methods may panic.
func errorIs(err, target error) bool {
	return guardedValue(false, func() bool { return errors.Is(err, target) })
}

// errorText is err.Error() for errors whose methods may panic.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return guardedValue(typeName(err)+" (its Error method panicked)", func() string { return err.Error() })
}

// logs reports whether the logger writes lines of that level.
func (p *Pipeline) logs(ctx context.Context, level slog.Level) bool {
	return guardedValue(false, func() bool { return p.cfg.Logger.Enabled(ctx, level) })
}

// log writes a line. If the logger's handler panics, the line is lost.
func (p *Pipeline) log(ctx context.Context, level slog.Level, text string, attrs ...slog.Attr) {
	defer func() { _ = recover() }()
	p.cfg.Logger.LogAttrs(ctx, level, text, attrs...) //nolint:sloglint // every caller passes a literal
}
