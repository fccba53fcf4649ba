package access

import (
	"net/http"
	"strings"
)

// Route is a route of a server, and who may use it.
type Route struct {
	// Method and Path are the pattern's; an empty Method is any.
	Method, Path string
	// Least is the least role that may use it. With None, callers need no credentials.
	Least Role
	// Changes means that it changes something.
	Changes bool
}

// Mux is a ServeMux that knows its routes, so that a test can try every route with every role. The zero Mux is ready.
type Mux struct {
	mux    http.ServeMux
	routes []Route
}

// Route serves a pattern for callers with the least role; the caller is in the context (see [Guard.Protect]). The
// handler itself refuses the others, in the form that its callers read.
func (m *Mux) Route(pattern string, least Role, changes bool, h http.Handler) {
	method, path, ok := strings.Cut(pattern, " ")
	if !ok {
		method, path = "", pattern
	}
	m.routes = append(m.routes, Route{method, path, least, changes})
	m.mux.Handle(pattern, h)
}

// HandleFunc serves a pattern for viewers.
func (m *Mux) HandleFunc(pattern string, h func(http.ResponseWriter, *http.Request)) {
	m.Route(pattern, Viewer, false, http.HandlerFunc(h))
}

// Handler returns the handler of a request, as [http.ServeMux.Handler].
func (m *Mux) Handler(r *http.Request) (http.Handler, string) { return m.mux.Handler(r) }

// ServeHTTP answers a request.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.mux.ServeHTTP(w, r) }

// Mount serves everything below a path with a handler whose routes are known.
func (m *Mux) Mount(path string, routes []Route, h http.Handler) {
	m.routes = append(m.routes, routes...)
	m.mux.Handle(path, h)
}

// Routes are the served routes.
func (m *Mux) Routes() []Route { return m.routes }
