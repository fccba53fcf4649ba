package dashboard

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/problem"
)

// dashboard answers the requests. It is safe for concurrent use.
type dashboard struct {
	cfg Config
	// cache is for pages that refresh now and then, runsCache for a run that is being watched.
	cache, runsCache *cache
	jobs             *jobs
}

// policy allows only our own files; pico draws its arrows and ticks with images inside the style sheet.
const policy = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; " +
	"frame-ancestors 'none'"

// action is a handler that may fail.
type action func(http.ResponseWriter, *http.Request) error

func (d *dashboard) routes() *access.Mux {
	mux := &access.Mux{}
	get := func(path string, least access.Role, a action) {
		mux.Route("GET "+d.cfg.Prefix+path, least, false, d.guard(least, false, a))
	}
	post := func(path string, least access.Role, a action) {
		mux.Route("POST "+d.cfg.Prefix+path, least, true, d.guard(least, true, a))
	}
	get("/{$}", access.Viewer, d.overview)
	get("/groups", access.Viewer, d.groups)
	get("/groups/act", access.Operator, d.confirmCauses)
	post("/groups/act", access.Operator, d.actCauses)
	get("/groups/{fingerprint}", access.Viewer, d.group)
	post("/groups/{fingerprint}", access.Operator, d.changeCause)
	get("/report", access.Viewer, d.report)
	get("/report.md", access.Viewer, d.reportMarkdown)
	get("/report.json", access.Viewer, d.reportJSON)
	get("/entries", access.Viewer, d.entries)
	get("/entries/act", access.Operator, d.confirm)
	post("/entries/act", access.Operator, d.act)
	get("/entries/{id}", access.Viewer, d.entry)
	post("/entries/{id}", access.Operator, d.change)
	get("/entries/{id}/payload", access.Viewer, d.payload)
	get("/entries/{id}/edit", access.Operator, d.editForm)
	post("/entries/{id}/edit", access.Operator, d.edit)
	get("/runs", access.Viewer, d.runs)
	get("/runs/new", access.Operator, d.newRun)
	post("/runs/new", access.Operator, d.startRun)
	get("/runs/{id}", access.Viewer, d.run)
	post("/runs/{id}", access.Operator, d.changeRun)
	get("/live", access.Viewer, d.live)
	post("/live", access.Operator, d.changeIntake)
	get("/retention", access.Viewer, d.retention)
	post("/retention", access.Admin, d.purge)
	get("/audit", access.Viewer, d.audit)
	get("/system", access.Viewer, d.system)
	get("/jobs/{id}", access.Operator, d.job)
	mux.HandleFunc("GET "+d.cfg.Prefix+"/static/{name...}", d.static)
	mux.Handle(d.cfg.Prefix+"/", d.guard(access.Viewer, false, func(w http.ResponseWriter, r *http.Request) error {
		if !strings.Contains(r.Header.Get("Accept"), "text/html") { // a program, not a person
			problem.Write(w, http.StatusNotFound, "nothing is served at "+r.URL.Path)
			return nil
		}
		return &fault{status: http.StatusNotFound, title: "There is no such page", detail: "Follow a link above."}
	}))
	return mux
}

// anyBytes are the fields of forms that hold parts of messages.
var anyBytes = []string{"payload", "header", "value", "new_header", "new_value", "remove"}

// readable reads the parameters of a request, and refuses text that no store can hold with the name of its field.
func readable(r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		if _, large := errors.AsType[*http.MaxBytesError](err); large {
			return newFault(http.StatusRequestEntityTooLarge, "The form is too large", "Nothing was changed. Send less at once.",
				err)
		}
		return newFault(http.StatusBadRequest, "The form could not be read", "Go back and send it again.", err)
	}
	bad := func(text string) bool { return strings.ContainsRune(text, 0) || !utf8.ValidString(text) }
	if bad(r.URL.Path) {
		return &fault{
			status: http.StatusUnprocessableEntity, title: "That is not an address",
			detail: "It has characters in it that no name has.",
		}
	}
	for name, values := range r.Form {
		if slices.ContainsFunc(values, bad) && (!slices.Contains(anyBytes, name) || r.Method == http.MethodGet) {
			return &fault{
				status: http.StatusUnprocessableEntity, title: "That cannot be read",
				detail: strconv.Quote(name) + " holds characters that are not text. Nothing was changed.",
			}
		}
	}
	return nil
}

// guard wraps every page: it checks access, and restricts what a browser may do with it.
func (d *dashboard) guard(least access.Role, changes bool, next action) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("X-Frame-Options", "DENY")
		header.Set("Referrer-Policy", "same-origin")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		var err error
		switch p := access.From(r.Context()); {
		case !p.Role.Allows(least):
			err = &fault{
				status: http.StatusForbidden, title: "This is not for you",
				detail: access.Refusal(p, least) + ". Ask the people who run this server.",
			}
		case changes && d.cfg.ReadOnly:
			err = &fault{
				status: http.StatusForbidden, title: "This dashboard is read-only",
				detail: "Nothing was changed. Changes are switched off in the server's configuration.",
			}
		default:
			ctx, cancel := context.WithTimeout(r.Context(), d.cfg.Timeout)
			defer cancel()
			r = r.WithContext(ctx)
			r.Body = http.MaxBytesReader(w, r.Body, d.cfg.Body)
			if err = readable(r); err == nil {
				err = next(w, r)
			}
		}
		if err != nil {
			d.fail(w, r, err)
		}
	})
}
