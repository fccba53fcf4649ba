package dashboard

import (
	"context"
	"errors"
	"net/http"

	"github.com/redrive-go/redrive/dlq"
)

// fault is an answer that says what went wrong and what to do.
type fault struct {
	status        int
	title, detail string
	cause         error
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

// faultOf says what an error means to who looks at a page.
func faultOf(err error) *fault {
	var f *fault
	switch {
	case errors.As(err, &f):
		return f
	case errors.Is(err, dlq.ErrNotFound):
		return &fault{http.StatusNotFound, "It is not there", "It may have been purged. The audit log knows what became of it.", err}
	case errors.Is(err, dlq.ErrConflict):
		return &fault{http.StatusConflict, "Somebody was faster", "Nothing was changed: " + err.Error() + ". Go back, look again, and decide anew.", err}
	case errors.Is(err, dlq.ErrForbidden):
		return &fault{http.StatusForbidden, "This is not for you", err.Error(), err}
	case errors.Is(err, dlq.ErrInvalid):
		return &fault{http.StatusUnprocessableEntity, "That makes no sense", err.Error() + ". Nothing was changed.", err}
	case errors.Is(err, context.DeadlineExceeded):
		return &fault{http.StatusGatewayTimeout, "It took too long", "The store was asked for too much at once. Filter by a topic, a cause or a time as well.", err}
	default:
		return &fault{
			http.StatusServiceUnavailable, "The store does not answer",
			"This page tries again by itself. Dead letters that arrive meanwhile are kept in the spool. Look at the server's log and at the database: " + err.Error(), err,
		}
	}
}

// sees refuses who may not see everything to look into payloads by other means: to search for what is hidden is to see it, and a jq
// expression can copy it to where it is not hidden.
func (d *dashboard) sees(ctx context.Context, f *dlq.Filter, jq string) error {
	if !f.LooksIntoPayloads() && jq == "" || d.cfg.Visible(ctx).Empty() {
		return nil
	}
	return &fault{
		status: http.StatusForbidden, title: "A part of the payloads is hidden from you",
		detail: "So you cannot search in them or send them through a jq expression. Ask somebody who sees all of them.",
	}
}

// fail answers with an error page.
func (d *dashboard) fail(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		return // the client has gone
	}
	f := faultOf(err)
	if f.status >= http.StatusInternalServerError {
		d.cfg.Logger.WarnContext(r.Context(), "dashboard: a page could not be shown", "path", r.URL.Path, "error", err)
	}
	// A page that failed keeps trying, but only one that was looked at: a change is not made again.
	v := view{Title: f.title, Live: r.Method == http.MethodGet && f.status >= http.StatusInternalServerError}
	v.Data = struct{ Status, Detail string }{http.StatusText(f.status), d.cfg.Visible(r.Context()).Text(f.detail)}
	if err := d.render(w, r, f.status, "fault", v); err != nil {
		d.cfg.Logger.ErrorContext(r.Context(), "dashboard: the page of an error could not be shown", "error", err)
	}
}
