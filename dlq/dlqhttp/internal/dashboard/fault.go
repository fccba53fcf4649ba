package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redrive"
)

// fault is an error page: what went wrong, what had been done by then, and the way back.
type fault struct {
	status        int
	title, detail string
	cause         error
	// reason is the literal error of something else, such as a broker.
	reason string
	// back is where to go from here, below the prefix.
	back, backLabel string
}

func newFault(status int, title, detail string, cause error) *fault {
	return &fault{status: status, title: title, detail: detail, cause: cause}
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
	return f.title
}

// Unwrap is the cause.
func (f *fault) Unwrap() error { return f.cause }

// faultOf is the error page for an error. Unless it is known to be a refusal, its status is 500 or above.
func faultOf(err error) *fault {
	var f *fault
	var refused *visible.RefusedError
	switch {
	case errors.As(err, &f):
		return f
	case errors.As(err, &refused):
		return newFault(http.StatusForbidden, "A part of this is hidden from you", refused.Detail+".", err)
	case errors.Is(err, dlq.ErrPublish):
		f = newFault(http.StatusBadGateway, "Not sent: the broker did not accept the message",
			"The entry waits as before, and can be redriven again.", err)
		if errors.Is(err, context.DeadlineExceeded) {
			f.title = "The broker did not confirm the message"
			f.detail = "It may have been sent: look whether its consumer has handled it before you redrive it again."
		}
		f.reason = brokerError(err)
		return f
	case errors.Is(err, dlq.ErrNotFound):
		return newFault(http.StatusNotFound, "Not found",
			"It may have been purged. The audit log has its history.", err)
	case errors.Is(err, dlq.ErrConflict):
		return newFault(http.StatusConflict, "Someone was faster",
			"Nothing was changed: "+err.Error()+". Go back, look again, and decide again.", err)
	case errors.Is(err, redrive.ErrForbidden):
		return newFault(http.StatusForbidden, "This is not for you", err.Error(), err)
	case errors.Is(err, dlq.ErrInvalid):
		return newFault(http.StatusUnprocessableEntity, "This is not valid", err.Error()+". Nothing was changed.", err)
	case errors.Is(err, context.DeadlineExceeded):
		return newFault(http.StatusGatewayTimeout, "It took too long", "", err)
	default:
		return newFault(http.StatusServiceUnavailable, "This did not work", "", err)
	}
}

// brokerError is the part of an error that comes from the broker's driver.
func brokerError(err error) string {
	_, words, _ := strings.Cut(err.Error(), dlq.ErrPublish.Error()+": ")
	return words
}

// explain completes a fault that is not a refusal: whether anything was changed, and whether the store is the reason.
func (d *dashboard) explain(r *http.Request, f *fault) {
	looks := r.Method == http.MethodGet
	if f.back == "" {
		f.back, f.backLabel = backLink(r)
	}
	if f.detail != "" {
		return
	}
	if f.reason == "" && f.cause != nil {
		f.reason = f.cause.Error()
	}
	const unsure = "It is not known whether the change was saved: look before you do it again. " +
		"Every change that was saved has an audit record."
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), healthTimeout)
	defer cancel()
	switch down := d.cfg.Manager.Ping(ctx); {
	case down != nil && looks:
		f.title = "The store does not answer"
		f.detail = "This page is tried again automatically. Dead letters that arrive meanwhile are kept in the spool of " +
			"their service."
	case down != nil:
		f.title, f.detail = "The store does not answer", unsure
	case f.status == http.StatusGatewayTimeout && looks:
		f.detail = "The query was too large for the store. Filter by a topic, a cause or a time as well."
	case looks:
		f.detail = "Nothing was changed. The store answers, but this page could not be made. It is tried again automatically."
	default:
		f.detail = unsure
	}
}

// backLink is where a request came from, judging by its address.
func backLink(r *http.Request) (path, label string) {
	id := r.PathValue("id")
	switch {
	case id == "":
		return "", ""
	case strings.Contains(r.Pattern, "/entries/{id}"):
		if _, err := driver.ParseID(id); err == nil {
			return "/entries/" + id, "Entry " + id
		}
	case strings.Contains(r.Pattern, "/runs/{id}"):
		return "/runs/" + url.PathEscape(id), "The run"
	}
	return "", ""
}

// sees refuses to let a caller from whom something is hidden search in payloads by other means.
func (d *dashboard) sees(ctx context.Context, f *dlq.Filter, jq string) error {
	sees := d.cfg.Visible(ctx)
	return cmp.Or(sees.Search(ctx, f), sees.JQ(jq))
}

// faultData is what the page of a fault shows.
type faultData struct{ Status, Detail, Reason, Back, BackLabel string }

// fail responds with an error page.
func (d *dashboard) fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		return // the client disconnected
	}
	if refused, ok := errors.AsType[*visible.RefusedError](err); ok {
		if id, err := driver.ParseID(r.PathValue("id")); err == nil && strings.Contains(r.Pattern, "/entries/{id}") {
			refused.Entry = id
		}
		d.cfg.Refused(r.Context(), refused)
	}
	f := *faultOf(err)
	if f.status >= http.StatusInternalServerError {
		d.cfg.Logger.WarnContext(r.Context(), "dashboard: a request failed", "method", r.Method, "path", r.URL.Path, "error",
			err)
	}
	d.explain(r, &f)
	looks := r.Method == http.MethodGet
	if looks && f.back == r.URL.Path[min(len(d.cfg.Prefix), len(r.URL.Path)):] {
		f.back = "" // this page is the one that fails
	}
	// A failed page retries, but only after a read: a change is not repeated.
	sees := d.cfg.Visible(r.Context())
	v := view{Title: f.title, Live: looks && f.status >= http.StatusInternalServerError}
	v.Data = &faultData{http.StatusText(f.status), sees.Text(f.detail), sees.Text(f.reason), f.back, f.backLabel}
	if err := d.render(w, r, f.status, "fault", v); err != nil {
		d.cfg.Logger.ErrorContext(r.Context(), "dashboard: the page of an error could not be shown", "error", err)
	}
}
