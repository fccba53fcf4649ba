// Package guarded calls functions in goroutines of ours, where a panic would end the process, not only one request or
// run.
package guarded

import (
	"fmt"
	"log/slog"
	"runtime/debug"
)

// PanicError is a panic as an error.
type PanicError struct {
	value any
	stack []byte
}

// Error omits the stack, which is for the log.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// LogValue has the stack.
func (e *PanicError) LogValue() slog.Value {
	return slog.GroupValue(slog.String("error", e.Error()), slog.String("stack", string(e.stack)))
}

// Call calls do, and returns its panic as a [PanicError].
func Call(do func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &PanicError{value, debug.Stack()}
		}
	}()
	return do()
}
