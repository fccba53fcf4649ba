package access

import (
	"net/http"
	"strings"
)

// Route is what a server answers, and who may ask.
type Route struct {
	// Method and Path are those of the pattern; an empty Method is any.
	Method, Path string
	// Least is the least role that may ask. None is for callers without credentials too.
	Least Role
	// Changes means that it changes something.
	Changes bool
}

// Mux is a ServeMux that knows its routes: what is served is what can be tried with every role. The zero Mux is ready.
type Mux struct {
	mux    http.ServeMux
	routes []Route
}

// Route serves a pattern for callers with the least role; who they are is in the context (see [Guard.Protect]). The
// handler refuses the others itself, in the form that its callers read.
func (m *Mux) Route(pattern string, least Role, changes bool, h http.Handler) {
	method, path, ok := strings.Cut(pattern, " ")
	if !ok {
		method, path = "", pattern
	}
	m.routes = append(m.routes, Route{method, path, least, changes})
	m.mux.Handle(pattern, h)
}

// Handle serves a pattern for viewers.
func (m *Mux) Handle(pattern string, h http.Handler) { m.Route(pattern, Viewer, false, h) }

// HandleFunc serves a pattern for viewers.
func (m *Mux) HandleFunc(pattern string, h func(http.ResponseWriter, *http.Request)) {
	m.Handle(pattern, http.HandlerFunc(h))
}

// Handler is that of a request, as [http.ServeMux.Handler].
func (m *Mux) Handler(r *http.Request) (http.Handler, string) { return m.mux.Handler(r) }

// ServeHTTP answers a request.
func (m *Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.mux.ServeHTTP(w, r) }

// Mount serves everything below a path with a handler whose routes are known.
func (m *Mux) Mount(path string, routes []Route, h http.Handler) {
	m.routes = append(m.routes, routes...)
	m.mux.Handle(path, h)
}

// Routes are what is served.
func (m *Mux) Routes() []Route { return m.routes }
