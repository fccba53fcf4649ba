package problem

import (
	"net/http"
	"strings"
)

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

// discard discards a response.
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
