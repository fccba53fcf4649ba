// Package errors has errors as github.com/pkg/errors makes them, which users' code brings along, for tests: the
// names of its types are part of what is recognized, so the package has the same.
package errors

import (
	"fmt"
	"runtime"
)

// withStack is an error with the stack of where it was made, printed by %+v as github.com/pkg/errors does.
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
