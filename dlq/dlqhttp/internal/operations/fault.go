package operations

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
)

// Fault is what the error of an operation means to its caller: a status for programs, a title and a detail for people.
type Fault struct {
	Status        int
	Title, Detail string
}

// faults are the errors with a meaning: the first that fits counts. %s in a detail is the error's text.
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
		http.StatusConflict, "Someone was faster",
		"Nothing was changed: %s. Go back, look again, and decide again.",
	}},
	{dlq.ErrForbidden, Fault{http.StatusForbidden, "This is not for you", "%s."}},
	{dlq.ErrInvalid, Fault{http.StatusUnprocessableEntity, "This is not valid", "%s. Nothing was changed."}},
}

// FaultOf finds the meaning of an error. Without one, the store or something behind it did not answer: there is no
// detail, and the status is 503, or 504 when the time of the request is over.
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
