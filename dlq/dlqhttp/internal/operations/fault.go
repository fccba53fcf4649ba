package operations

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
)

// Fault is what the error of an operation means to its caller: a status for programs, a title and a detail for people.
type Fault struct {
	Status        int
	Title, Detail string
}

// faults are the known errors; the first that matches counts. %s in a detail is the error's text.
var faults = []struct {
	err error
	Fault
}{
	{dlq.ErrPublish, Fault{
		http.StatusServiceUnavailable, "Not sent: the broker did not accept the message",
		"The entry waits as before, and can be redriven again.",
	}},
	{dlq.ErrNotFound, Fault{
		http.StatusNotFound, "Not found", "It may have been purged. The audit log has its history.",
	}},
	{dlq.ErrConflict, Fault{
		http.StatusConflict, "Someone else was faster",
		"Nothing was changed: %s. Go back and look at it again.",
	}},
	{dlq.ErrForbidden, Fault{http.StatusForbidden, "You may not do this", "%s."}},
	{dlq.ErrInvalid, Fault{http.StatusUnprocessableEntity, "This is not valid", "%s. Nothing was changed."}},
}

// FaultOf returns what an error means. An unknown one means that the store, or something behind it, failed: it has no
// detail, and the status 503, or 504 when the request ran out of time.
func FaultOf(ctx context.Context, err error) Fault {
	if refused, ok := errors.AsType[*visible.RefusedError](err); ok {
		status := http.StatusForbidden
		if refused.Invalid {
			status = http.StatusUnprocessableEntity
		}
		return Fault{status, "A part of this is hidden from you", refused.Detail + "."}
	}
	for _, known := range faults {
		if errors.Is(err, known.err) {
			f := known.Fault
			if strings.Contains(f.Detail, "%s") {
				f.Detail = fmt.Sprintf(f.Detail, err)
			}
			return f
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return Fault{Status: http.StatusGatewayTimeout, Title: "It took too long"}
	}
	return Fault{Status: http.StatusServiceUnavailable, Title: "This did not work"}
}

// PanicError is a panic as an error.
type PanicError struct {
	value any
	stack []byte
}

// Error omits the stack, which is for the log.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// LogValue has the stack.
func (e *PanicError) LogValue() slog.Value {
	return slog.GroupValue(slog.Any("panic", e.value), slog.String("stack", string(e.stack)))
}

// Guarded calls do in a goroutine of ours, where a panic would end the process, not only the request: it returns the
// panic as a [PanicError].
func Guarded[T any](do func() (T, error)) (value T, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = &PanicError{fault, debug.Stack()}
		}
	}()
	return do()
}
