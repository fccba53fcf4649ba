package middleware

import (
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

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

// Recover turns a handler's panic into a [PanicError]. A handler that ends its goroutine (runtime.Goexit, t.FailNow)
// has no caller to return to, so its message is nacked here: otherwise it would never be acked or nacked.
//
// A [Pipeline] does this itself, and treats a Goexit like any failure. Recover is for chains composed by hand.
func Recover(next message.HandlerFunc) message.HandlerFunc {
	return func(m *message.Message) (produced []*message.Message, err error) {
		returned := false
		defer func() {
			if returned {
				return
			}
			if r := recover(); r != nil {
				produced, err = nil, newPanicError(r)
				return
			}
			m.Nack()
		}()
		produced, err = next(m)
		returned = true
		return produced, err
	}
}
