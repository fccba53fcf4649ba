package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/driver"
)

// fault is an error page: what went wrong, what had been done by then, and the way back.
type fault struct {
	operations.Fault
	cause error
	// reason is the literal error of something else, such as a broker.
	reason string
	// back is where to go from here, below the prefix.
	back, backLabel string
}

func newFault(status int, title, detail string, cause error) *fault {
	return &fault{Fault: operations.Fault{Status: status, Title: title, Detail: detail}, cause: cause}
}

// invalid rejects the content of a request.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{dlq.ErrInvalid}, args...)...)
}

// Error is for the log.
func (f *fault) Error() string {
	if f.cause != nil {
		return f.cause.Error()
	}
	return f.Title
}

// Unwrap is the cause.
func (f *fault) Unwrap() error { return f.cause }

// faultOf is the error page for an error. Unless it is known to be a refusal, its status is 500 or above.
func faultOf(ctx context.Context, err error) *fault {
	if f, ok := errors.AsType[*fault](err); ok {
		return new(*f)
	}
	f := &fault{Fault: operations.FaultOf(ctx, err), cause: err}
	if !errors.Is(err, dlq.ErrPublish) {
		return f
	}
	_, f.reason, _ = strings.Cut(err.Error(), dlq.ErrPublish.Error()+": ")
	if errors.Is(err, context.DeadlineExceeded) {
		f.Title = "The broker did not confirm the message"
		f.Detail = "It may have been sent: check whether its consumer has handled it before you redrive it again."
	}
	return f
}

// healthTimeout is how long a component may take to respond.
const healthTimeout = 3 * time.Second

// explain completes a fault that is not a refusal: was anything changed, and is the store down?
func (r *request) explain(ctx context.Context, f *fault) {
	if f.back == "" {
		f.back, f.backLabel = r.backLink()
	}
	if f.Detail != "" {
		return
	}
	if f.reason == "" && f.cause != nil {
		f.reason = f.cause.Error()
	}
	const unsure = "It is not known whether the change was saved: check before you repeat it. " +
		"Every change that was saved has an audit record."
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthTimeout)
	defer cancel()
	down, looks := r.cfg.Manager.Ping(ctx) != nil, r.Method == http.MethodGet
	if down {
		f.Title = "The store does not answer"
	}
	switch {
	case !looks:
		f.Detail = unsure
	case down:
		f.Detail = "This page retries automatically. Until then, each service keeps its dead letters in its spool."
	case f.Status == http.StatusGatewayTimeout:
		f.Detail = "The query was too large for the store. Filter by a topic, a cause or a time as well."
	default:
		f.Detail = "Nothing was changed. The store answers, but this page failed. It retries automatically."
	}
}

// entryID is the entry that the address names; 0 if it names none.
func (r *request) entryID() int64 {
	if !strings.Contains(r.Pattern, "/entries/{id}") {
		return 0
	}
	id, _ := driver.ParseID(r.PathValue("id")) // 0 on an error
	return id
}

// backLink is where a request came from, judging by its address.
func (r *request) backLink() (path, label string) {
	if id := r.entryID(); id != 0 {
		return entryPath(id), "Entry " + driver.FormatID(id)
	}
	if strings.Contains(r.Pattern, "/runs/{id}") {
		return "/runs/" + url.PathEscape(r.PathValue("id")), "The run"
	}
	return "", ""
}

// searches refuses to let a caller from whom something is hidden search in payloads by other means.
func (r *request) searches(f *dlq.Filter, jq string) error {
	return cmp.Or(r.sees.Search(r.Context(), f), r.sees.JQ(jq))
}

// faultData is what the page of a fault shows.
type faultData struct{ Status, Detail, Reason, Back, BackLabel string }

// fail responds with an error page.
func (r *request) fail(err error) {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		return // the client disconnected
	}
	if refused, ok := errors.AsType[*visible.RefusedError](err); ok {
		refused.Entry = r.entryID()
		r.cfg.Refused(r.Context(), refused)
	}
	f := faultOf(r.Context(), err)
	if f.Status >= http.StatusInternalServerError {
		r.cfg.Logger.WarnContext(r.Context(), "dashboard: a request failed", "method", r.Method, "path", r.URL.Path, "error",
			err)
	}
	r.explain(r.Context(), f)
	looks := r.Method == http.MethodGet
	if looks && f.back == r.URL.Path[min(len(r.cfg.Prefix), len(r.URL.Path)):] {
		f.back = "" // this page is the one that fails
	}
	// A failed page retries, but only after a read: a change is not repeated.
	v := view{Title: f.Title, Live: looks && f.Status >= http.StatusInternalServerError}
	v.Data = &faultData{
		http.StatusText(f.Status), r.sees.Text(f.Detail), r.sees.Text(f.reason), f.back, f.backLabel,
	}
	if err := r.render(f.Status, "fault", v); err != nil {
		r.cfg.Logger.ErrorContext(r.Context(), "dashboard: the page of an error could not be shown", "error", err)
	}
}
