package middleware

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"

	"github.com/redrive-go/redrive/envelope"
)

// PanicError is a handler's panic. panic(nil) arrives as a *runtime.PanicNilError. It unwraps to the panic's value if
// that is an error.
type PanicError struct {
	Value any
	// Stack is the panicking goroutine's stack from the function that panicked, at most 4 KiB of it.
	Stack string
}

// Error returns the value's text, cut to 1 KiB, without the stack: it is used in headers and logs.
func (e *PanicError) Error() string { return "panic: " + cut(e.text(), envelope.MaxErrorMessage) }

func (e *PanicError) text() (text string) {
	defer func() {
		if recover() != nil {
			text = fmt.Sprintf("%T", e.Value)
		}
	}()
	switch v := e.Value.(type) {
	case error:
		return errorText(v)
	case string:
		return v
	default:
		return fmt.Sprint(v)
	}
}

// Unwrap returns the value if it is an error, so that rules and marks see it.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
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
	return f()
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
func errorText(err error) (text string) {
	if err == nil {
		return ""
	}
	defer func() {
		if recover() != nil {
			text = typeName(err) + " (its Error method panicked)"
		}
	}()
	return err.Error()
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
