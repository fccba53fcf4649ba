package dashboard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/problem"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/visible"
	"github.com/redrive-go/redrive/dlq/driver"
)

// dashboard answers the requests. It is safe for concurrent use.
type dashboard struct {
	cfg operations.Config
	// cache is for pages that refresh now and then, runsCache for a run that is being watched.
	cache, runsCache *cache
	jobs             *jobs
}

// New makes the dashboard's handler. The caller is in the context of the request (see the access package); the wrapping
// handler has refused unknown callers and requests of other sites.
func New(cfg operations.Config) *access.Mux {
	d := &dashboard{
		cfg: cfg, cache: newCache(cfg.Interval), runsCache: newCache(min(runInterval, cfg.Interval)),
		jobs: &jobs{all: map[string]*job{}},
	}
	return d.routes()
}

// policy allows only our own files; pico draws its arrows and ticks with images inside the style sheet.
const policy = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; " +
	"frame-ancestors 'none'"

// request is a request, with what every page needs of it.
type request struct {
	*http.Request
	*dashboard
	w    http.ResponseWriter
	who  access.Principal
	sees visible.View
}

// now is the time of the store.
func (r *request) now() time.Time { return r.cfg.Manager.Now(r.Context()).UTC() }

// by is the author of a change, with the note and the version of the form.
func (r *request) by() dlq.By {
	version, _ := driver.ParseID(r.PostForm.Get("version")) // see readable
	return dlq.By{Actor: r.who.Name, Note: strings.TrimSpace(r.PostForm.Get("note")), Version: version}
}

// requires refuses a part of a form to callers below a role.
func (r *request) requires(least access.Role) error {
	if r.who.Role.Allows(least) {
		return nil
	}
	return newFault(http.StatusForbidden, "You may not do this",
		access.Refusal(r.who, least)+". Ask the people who run this server.", nil)
}

func (d *dashboard) routes() *access.Mux {
	mux := &access.Mux{}
	for _, p := range []struct {
		pattern string
		least   access.Role
		do      func(*request) error
	}{
		{"GET /{$}", access.Viewer, (*request).overview},
		{"GET /groups", access.Viewer, (*request).causes},
		{"GET /groups/act", access.Operator, (*request).confirmCauses},
		{"POST /groups/act", access.Operator, (*request).act},
		{"GET /groups/{fingerprint}", access.Viewer, (*request).cause},
		{"POST /groups/{fingerprint}", access.Operator, (*request).changeCause},
		{"GET /report", access.Viewer, (*request).report},
		{"GET /report.md", access.Viewer, (*request).reportMarkdown},
		{"GET /report.json", access.Viewer, (*request).reportJSON},
		{"GET /entries", access.Viewer, (*request).entries},
		{"GET /entries/act", access.Operator, (*request).confirmEntries},
		{"POST /entries/act", access.Operator, (*request).act},
		{"GET /entries/{id}", access.Viewer, (*request).entry},
		{"POST /entries/{id}", access.Operator, (*request).changeEntry},
		{"GET /entries/{id}/payload", access.Viewer, (*request).payload},
		{"GET /entries/{id}/edit", access.Operator, (*request).editForm},
		{"POST /entries/{id}/edit", access.Operator, (*request).edit},
		{"GET /runs", access.Viewer, (*request).runs},
		{"GET /runs/new", access.Operator, (*request).newRun},
		{"POST /runs/new", access.Operator, (*request).startRun},
		{"GET /runs/{id}", access.Viewer, (*request).run},
		{"POST /runs/{id}", access.Operator, (*request).changeRun},
		{"GET /live", access.Viewer, (*request).live},
		{"POST /live", access.Operator, (*request).changeIntake},
		{"GET /retention", access.Viewer, (*request).retention},
		{"POST /retention", access.Admin, (*request).purge},
		{"GET /audit", access.Viewer, (*request).audit},
		{"GET /system", access.Viewer, (*request).system},
		{"GET /jobs/{id}", access.Operator, (*request).job},
		{" /", access.Viewer, (*request).unknown},
	} {
		method, path, _ := strings.Cut(p.pattern, " ")
		changes := method == http.MethodPost
		mux.Route(strings.TrimSpace(method+" "+d.cfg.Prefix+path), p.least, changes, d.guard(p.least, changes, p.do))
	}
	mux.HandleFunc("GET "+d.cfg.Prefix+"/static/{name...}", d.static)
	return mux
}

func (r *request) unknown() error {
	if !problem.ForPerson(r.Request) {
		problem.Write(r.w, r.Request, http.StatusNotFound, "nothing is served at "+r.URL.Path)
		return nil
	}
	return newFault(http.StatusNotFound, "There is no such page", "Follow a link above.", nil)
}

// guard wraps every page: it checks access, and restricts what a browser may do with it.
func (d *dashboard) guard(least access.Role, changes bool, do func(*request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, hr *http.Request) {
		for name, value := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
			"Referrer-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-store",
		} {
			w.Header().Set(name, value)
		}
		ctx, cancel := context.WithTimeout(hr.Context(), d.cfg.Limits.Timeout)
		defer cancel()
		r := &request{hr.WithContext(ctx), d, w, access.From(ctx), d.cfg.Visible(ctx)}
		r.Body = http.MaxBytesReader(w, r.Body, d.cfg.Limits.Body)
		err := r.requires(least)
		if err == nil && changes && d.cfg.ReadOnly {
			err = newFault(http.StatusForbidden, "This dashboard is read-only",
				"Nothing was changed. Changes are switched off in the server's configuration.", nil)
		}
		if err == nil {
			err = r.readable()
		}
		if err == nil {
			err = do(r)
		}
		if err != nil {
			r.fail(err) //nolint:contextcheck // the request has it
		}
	})
}

// anyBytes are the fields of forms that hold parts of messages.
var anyBytes = []string{"payload", "header", "value", "new_header", "new_value", "remove"}

// readable reads the parameters, and refuses text that no store can hold with the name of its field.
func (r *request) readable() error {
	if err := r.ParseForm(); err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return newFault(http.StatusRequestEntityTooLarge, "The form is too large", "Nothing was changed. Send less at once.",
				err)
		}
		return newFault(http.StatusBadRequest, "The form could not be read", "Go back and send it again.", err)
	}
	if !operations.Storable(r.URL.Path) {
		return newFault(http.StatusUnprocessableEntity, "Invalid address",
			"It contains characters that no name has.", nil)
	}
	for name, values := range r.Form {
		bad := slices.ContainsFunc(values, func(text string) bool { return !operations.Storable(text) })
		if bad && (!slices.Contains(anyBytes, name) || r.Method == http.MethodGet) {
			return newFault(http.StatusUnprocessableEntity, "Invalid characters",
				fmt.Sprintf("%q contains characters that are not text. Nothing was changed.", name), nil)
		}
	}
	if text := r.PostForm.Get("version"); text != "" {
		if _, err := driver.ParseID(text); err != nil {
			return invalid("version %q", text)
		}
	}
	return nil
}

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

// explain completes a fault that is not a refusal: was anything changed, and is the store down?
func (r *request) explain(ctx context.Context, f *fault) {
	if f.back == "" {
		f.back, f.backLabel = r.backLink()
	}
	if f.Detail != "" {
		return
	}
	const unsure = "It is not known whether the change was saved: check before you repeat it. " +
		"Every change that was saved has an audit record."
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), operations.HealthTimeout)
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

// reason is the literal error of a fault: the broker's for everyone, the store's only for admins, or with ShowFaults.
func (r *request) reason(f *fault) string {
	text := f.reason
	if text == "" && f.cause != nil && f.Status >= http.StatusInternalServerError &&
		(r.cfg.ShowFaults || r.who.Role.Allows(access.Admin)) {
		text = f.cause.Error()
	}
	return r.sees.Text(text)
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
	v.Data = &faultData{http.StatusText(f.Status), r.sees.Text(f.Detail), r.reason(f), f.back, f.backLabel}
	if err := r.render(f.Status, "fault", v); err != nil {
		r.cfg.Logger.ErrorContext(r.Context(), "dashboard: the page of an error could not be shown", "error", err)
	}
}
