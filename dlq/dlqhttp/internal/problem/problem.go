// Package problem writes the errors that no route answers: as application/problem+json (RFC 9457), and as pages for
// people.
package problem

import (
	"encoding/json"
	"html/template"
	"net/http"
	"strings"

	"github.com/redrive-go/redrive/dlq/wire"
)

// ContentType of a problem.
const ContentType = "application/problem+json"

// Write responds with a problem, or with a page to a person. Nothing may have been written before.
func Write(w http.ResponseWriter, r *http.Request, status int, detail string) {
	if ForPerson(r) {
		Page(w, status, http.StatusText(status), detail, "")
		return
	}
	w.Header().Set("Content-Type", ContentType)
	w.WriteHeader(status)
	// the client disconnected: no reader is left for the error
	_ = json.NewEncoder(w).Encode(wire.Problem{Title: http.StatusText(status), Status: status, Detail: detail})
}

// ForPerson reports whether a browser shows the response: it accepts XHTML; Java's HttpURLConnection accepts text/html.
func ForPerson(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), "application/xhtml+xml")
}

var page = template.Must(template.New("page").Parse(`<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{{.Title}}</title></head>
<body><main><h1>{{.Title}}</h1><p>{{.Text}}</p>{{with .Login}}<p><a href="{{.}}">Log in</a></p>{{end}}</main></body>
</html>
`))

// Page responds with a page without styles and scripts. login, unless empty, is the address of the login.
func Page(w http.ResponseWriter, status int, title, text, login string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = page.Execute(w, struct{ Title, Text, Login string }{title, text, login}) // the client disconnected
}

// Router is an [http.ServeMux], or something that contains one.
type Router interface {
	http.Handler
	Handler(r *http.Request) (h http.Handler, pattern string)
}

// Mux answers with problems where a ServeMux has no route, or none for this method.
func Mux(mux Router) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := mux.Handler(r); pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		refused := &discard{header: http.Header{}}
		mux.ServeHTTP(refused, r)
		if refused.status == http.StatusMethodNotAllowed {
			allow := refused.header.Get("Allow")
			w.Header().Set("Allow", allow)
			Write(w, r, http.StatusMethodNotAllowed, r.Method+" is not allowed on "+r.URL.Path+": use "+
				strings.ReplaceAll(allow, ",", " or"))
			return
		}
		Write(w, r, http.StatusNotFound, "nothing is served at "+r.URL.Path)
	})
}

// Get refuses methods other than GET and HEAD with a problem.
func Get(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			Write(w, r, http.StatusMethodNotAllowed, r.Method+" is not allowed on "+r.URL.Path+": use GET or HEAD")
			return
		}
		next.ServeHTTP(w, r)
	})
}

type discard struct {
	header http.Header
	status int
}

// Header is that of the response.
func (d *discard) Header() http.Header { return d.header }

// WriteHeader records the status.
func (d *discard) WriteHeader(status int) { d.status = status }

// Write discards p.
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
