// Package access decides who the caller is and what it may do: roles, principals, authenticators, and the guard in
// front of every request.
package access

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/problem"
)

// Principal is the caller.
type Principal struct {
	// Name appears in the audit log. Role is what they may do.
	Name string
	Role Role
	// Unproven means that no credentials were required: the name is the client's claim.
	Unproven bool
}

// Identity is the key of a caller's own things. The role is part of it: a thing made in one role is not available in
// another.
func (p *Principal) Identity() string {
	return fmt.Sprintf("%t %s %s", p.Unproven, p.Role, p.Name)
}

type principalKey struct{}

// WithPrincipal puts the caller into a context.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// From returns the caller; a principal with role None if the context has none.
func From(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}

// Require answers 403 to callers below the least role.
func Require(least Role, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := From(r.Context()); !p.Role.Allows(least) {
			problem.Write(w, r, http.StatusForbidden, Refusal(p, least))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Refusal explains why a caller may not do something.
func Refusal(p Principal, least Role) string {
	return fmt.Sprintf("%s is %s; this needs the role %s", p.Name, p.Role, least)
}

// Role is what a caller may do. Each role includes those before it.
type Role int

const (
	// None may do nothing. The zero Role.
	None Role = iota
	// Metrics may read /metrics, and nothing else.
	Metrics
	// Viewer may look.
	Viewer
	// Operator may redrive, edit, resolve, discard, restore, park and export.
	Operator
	// Approver may approve other people's runs.
	Approver
	// Admin may import, purge, restore from the archive, and see the settings.
	Admin
)

var names = []string{"none", "metrics", "viewer", "operator", "approver", "admin"}

// ParseRole reads a role. None cannot be assigned.
func ParseRole(text string) (Role, error) {
	if i := slices.Index(names, text); i > 0 {
		return Role(i), nil
	}
	return None, fmt.Errorf("unknown role %q: %s", text, strings.Join(names[1:], ", "))
}

// String is the role as configurations name it.
func (r Role) String() string {
	if r < None || int(r) >= len(names) {
		return fmt.Sprintf("Role(%d)", int(r))
	}
	return names[r]
}

// Allows reports whether the role may do what requires the least role. Nothing is allowed for a least role of None: it
// was forgotten.
func (r Role) Allows(least Role) bool { return least > None && r >= least }

// Authenticator identifies the sender of a request. It is safe for concurrent use.
type Authenticator interface {
	// Authenticate returns who it is. The error is [ErrNoCredentials] when the request has no credentials that this
	// authenticator reads: then the next one is tried. [ErrBadCredentials] refuses the request. Any other error means that
	// the credentials could not be checked: unless another authenticator accepts them, the answer is 503. The request's
	// context ends after two seconds.
	Authenticate(r *http.Request) (Principal, error)
}

// AuthenticatorFunc turns a function into an Authenticator.
type AuthenticatorFunc func(*http.Request) (Principal, error)

// Authenticate calls f.
func (f AuthenticatorFunc) Authenticate(r *http.Request) (Principal, error) { return f(r) }

var (
	// ErrNoCredentials means that a request has no credentials that this authenticator reads.
	ErrNoCredentials = errors.New("no credentials")
	// ErrBadCredentials means that the credentials are wrong.
	ErrBadCredentials = errors.New("unknown token, user or password")
)

const (
	// knownFor is how long a session or a token is trusted without asking the store: one that another process has ended
	// lasts that long here.
	knownFor = 5 * time.Second
	maxKnown = 10_000

	// lookupRate and lookupBurst limit how often an address may make us look for unknown credentials in the store.
	lookupRate, lookupBurst = 2, 100
)

// known remembers valid credentials by their digest. When it is full it forgets all of them. The zero value is
// empty; it is safe for concurrent use.
type known[K comparable, V any] struct {
	mu       sync.Mutex
	byDigest map[K]V
}

func (k *known[K, V]) get(digest K) (value V, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	value, ok = k.byDigest[digest]
	return value, ok
}

func (k *known[K, V]) put(digest K, value V) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.byDigest == nil || len(k.byDigest) >= maxKnown {
		k.byDigest = map[K]V{}
	}
	k.byDigest[digest] = value
}

func (k *known[K, V]) forget(digest K) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.byDigest, digest)
}

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
