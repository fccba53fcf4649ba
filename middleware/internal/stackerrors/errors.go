// Package errors imitates github.com/pkg/errors, which users' code may depend on, for tests: the names of its types are
// part of what is recognized, so the package has the same name.
package errors

import (
	"fmt"
	"runtime"
)

// withStack is an error with the stack of its creation, printed by %+v as in github.com/pkg/errors.
type withStack struct { //nolint:errname // the name that is recognised
	error

	stack []uintptr
}

// WithStack adds the stack of its caller.
func WithStack(err error) error {
	stack := make([]uintptr, 32)
	return &withStack{err, stack[:runtime.Callers(2, stack)]}
}

// Unwrap returns the error itself.
func (e *withStack) Unwrap() error { return e.error }

// Format prints the stack with %+v.
func (e *withStack) Format(f fmt.State, verb rune) {
	fmt.Fprint(f, e.Error())
	if verb != 'v' || !f.Flag('+') {
		return
	}
	frames := runtime.CallersFrames(e.stack)
	for {
		frame, more := frames.Next()
		fmt.Fprintf(f, "\n%s\n\t%s:%d", frame.Function, frame.File, frame.Line)
		if !more {
			return
		}
	}
}
