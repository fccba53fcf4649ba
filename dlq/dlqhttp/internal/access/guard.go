package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/problem"
)

// ActorHeader names the actor where no credentials are required.
const ActorHeader = "X-Redrive-Actor"

const (
	// localName is the actor of unauthenticated requests.
	localName = "local"
	maxActor  = 100
	// maxHeaders is the maximum size of a request's headers in bytes.
	maxHeaders = 32 << 10
)

// GuardConfig specifies who a Guard admits; dlqhttp.Config explains the fields.
type GuardConfig struct {
	Auth    []Authenticator
	Hosts   []string
	Origins []string
	Rate    float64
	Burst   int
	Logger  *slog.Logger
	// Unauthorized answers an unknown caller with something other than a problem, and reports whether it has.
	Unauthorized func(http.ResponseWriter, *http.Request) bool
}

// Guard is in front of everything: it identifies the caller, and refuses requests that are not for this server.
type Guard struct {
	cfg      GuardConfig
	origins  *http.CrossOriginProtection
	requests *Limiter
	failures *Limiter // by address, for wrong credentials
	accounts *Limiter // by their user name
}

// The burst and the rate per second of wrong credentials, by address and by account.
const (
	failureBurst = 20
	failureRate  = 0.5
)

// NewGuard makes a Guard.
func NewGuard(cfg GuardConfig) (*Guard, error) {
	cfg.Hosts = slices.Clone(cfg.Hosts)
	for i, name := range cfg.Hosts {
		cfg.Hosts[i] = strings.ToLower(name)
	}
	g := &Guard{
		cfg: cfg, origins: http.NewCrossOriginProtection(), requests: NewLimiter(cfg.Rate, cfg.Burst),
		failures: NewLimiter(failureRate, failureBurst), accounts: NewLimiter(failureRate, failureBurst),
	}
	for _, origin := range cfg.Origins {
		if err := g.origins.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("origin %q: %w", origin, err)
		}
	}
	return g, nil
}

// Protect passes authorized requests to next, with the caller in the context.
func (g *Guard) Protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.acceptable(w, r) {
			return
		}
		who, err := g.authenticate(r)
		switch {
		case err != nil:
			g.refuse(w, r, err)
		case who.Role <= None:
			problem.Write(w, r, http.StatusForbidden, who.Name+" has no role on this server")
		default:
			g.serve(w, r, &who, next)
		}
	})
}

// Recognize passes a caller without credentials on as one without a role, for what is partly public. One with
// credentials is admitted as by Protect: this must not be a way to test credentials.
func (g *Guard) Recognize(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := Principal{}, ErrNoCredentials
		if g.foreign(r) == "" {
			who, err = g.authenticate(r)
		}
		switch {
		case errors.Is(err, ErrNoCredentials):
			next.ServeHTTP(w, r.WithContext(WithPrincipal(r.Context(), Principal{})))
		case err != nil:
			g.refuse(w, r, err)
		default:
			g.serve(w, r, &who, next)
		}
	})
}

// Open admits callers without credentials, for logins. It refuses requests that are not for this server, or come from
// another site.
func (g *Guard) Open(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.acceptable(w, r) {
			return
		}
		if wait, ok := g.requests.Allow(host(r.RemoteAddr)); !ok {
			tooMany(w, r, wait)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// serve serves a known caller, within its rate.
func (g *Guard) serve(w http.ResponseWriter, r *http.Request, who *Principal, next http.Handler) {
	client := who.Name
	if who.Unproven {
		client = host(r.RemoteAddr)
	}
	if wait, ok := g.requests.Allow(client); !ok {
		tooMany(w, r, wait)
		return
	}
	next.ServeHTTP(w, r.WithContext(WithPrincipal(r.Context(), *who)))
}

// acceptable refuses requests with too many headers, for other servers, and from other sites.
func (g *Guard) acceptable(w http.ResponseWriter, r *http.Request) bool {
	if size := headerSize(r.Header); size > maxHeaders {
		problem.Write(w, r, http.StatusRequestHeaderFieldsTooLarge,
			fmt.Sprintf("the headers have %d bytes: at most %d", size, maxHeaders))
		return false
	}
	reason := g.foreign(r)
	if reason == "" && g.origins.Check(r) != nil {
		reason = "a page of another site may not change anything here: if it should, add its origin to server.origins"
	}
	if reason == "" {
		return true
	}
	g.cfg.Logger.WarnContext(r.Context(), "request refused", "reason", reason, "remote", r.RemoteAddr, "host", r.Host,
		"origin", r.Header.Get("Origin"))
	problem.Write(w, r, http.StatusForbidden, reason)
	return false
}

// slowed means that credentials were not checked, because too many were wrong before.
type slowed struct{ wait time.Duration }

// Error is for the log.
func (s *slowed) Error() string { return "too many wrong credentials" }

// unchecked means that an authenticator failed, so that the credentials may be correct.
type unchecked struct{ error }

// refuse answers an unknown caller.
func (g *Guard) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if s, ok := errors.AsType[*slowed](err); ok {
		tooMany(w, r, s.wait)
		return
	}
	if _, ok := errors.AsType[*unchecked](err); ok {
		w.Header().Set("Retry-After", "5")
		problem.Write(w, r, http.StatusServiceUnavailable,
			"your credentials could not be checked: try again; the server's log has the reason")
		return
	}
	w.Header().Add("WWW-Authenticate", `Bearer realm="redrive"`)
	w.Header().Add("WWW-Authenticate", `Basic realm="redrive", charset="UTF-8"`)
	if g.cfg.Unauthorized != nil && g.cfg.Unauthorized(w, r) {
		return
	}
	problem.Write(w, r, http.StatusUnauthorized, "log in: Authorization: Bearer <token>, or user and password")
}

// authenticate identifies a caller. Wrong credentials are counted and logged, wherever they are sent, and further
// attempts are slowed down, by address and by account. A password, whose check is slow, waits for others at its address
// and for its account: many at the same time would all find something left.
func (g *Guard) authenticate(r *http.Request) (who Principal, err error) {
	// Guesses are counted by the start of the user name, without characters that would add lines to a log. It is a clone:
	// a part of a name would keep all of it in memory.
	name, _, password := r.BasicAuth()
	address, account := host(r.RemoteAddr), clean(strings.Clone(name[:min(len(name), maxActor)]))
	wrong := false
	defer func() { //nolint:contextcheck // the request has it
		if err != nil && !errors.Is(err, ErrNoCredentials) {
			g.cfg.Logger.WarnContext(r.Context(), "credentials refused", "remote", r.RemoteAddr, "account", account, "path",
				r.URL.Path, "error", err)
		}
	}()
	guess := password && !g.known(r)
	for _, by := range []struct { // always in this order, because they wait for each other
		limit *Limiter
		name  string
	}{{g.failures, address}, {g.accounts, account}} {
		if !guess || by.name == "" {
			continue
		}
		end, err := by.limit.Begin(r.Context(), by.name)
		if err != nil {
			return Principal{}, err
		}
		defer func() { end(wrong) }() // also after a panic
	}
	who, err = g.identify(r)
	// Without the store only a password is wrong for certain, and must not be guessed meanwhile.
	_, unsure := errors.AsType[*unchecked](err)
	wrong = errors.Is(err, ErrBadCredentials) && (password || !unsure)
	if wrong && !guess {
		if wait, ok := g.failures.Allow(address); !ok {
			err = &slowed{wait}
		}
	}
	return who, err
}

// known reports whether the credentials were correct before. They are always checked, and so are tokens, so that a
// neighbour who guesses locks no caller out.
func (g *Guard) known(r *http.Request) bool {
	return slices.ContainsFunc(g.cfg.Auth, func(a Authenticator) bool {
		knows, ok := a.(interface{ Known(*http.Request) bool })
		return ok && knows.Known(r)
	})
}

// checkTimeout limits an authenticator's lookup: a store that hangs must leave a scrape the time for the metrics.
const checkTimeout = 2 * time.Second

// identify tries the authenticators. If one fails, another may still know the caller; that it does not proves nothing.
func (g *Guard) identify(r *http.Request) (Principal, error) {
	if len(g.cfg.Auth) == 0 {
		return Principal{Name: actor(r), Role: Admin, Unproven: true}, nil
	}
	var failed error
	for _, a := range g.cfg.Auth {
		who, err := check(a, r)
		switch {
		case err == nil:
			return who, nil
		case errors.Is(err, ErrBadCredentials):
			return Principal{}, errors.Join(err, failed)
		case !errors.Is(err, ErrNoCredentials):
			failed = &unchecked{err}
		}
	}
	if failed != nil {
		return Principal{}, failed
	}
	if r.Header.Get("Authorization") != "" {
		return Principal{}, ErrBadCredentials // that none of them could read
	}
	return Principal{}, ErrNoCredentials
}

func check(a Authenticator, r *http.Request) (Principal, error) {
	if _, ok := a.(*basic); ok {
		return a.Authenticate(r) // which looks nowhere, but waits for the comparisons of others
	}
	ctx, cancel := context.WithTimeout(r.Context(), checkTimeout)
	defer cancel()
	return a.Authenticate(r.WithContext(ctx))
}

// actor is the name that a caller gives.
func actor(r *http.Request) string {
	if name := clean(r.Header.Get(ActorHeader)); name != "" && len(name) <= maxActor {
		return name
	}
	return localName
}

// clean is a name without control characters and surrounding spaces.
func clean(name string) string {
	return strings.TrimSpace(strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || unicode.Is(unicode.Cf, c) {
			return -1
		}
		return c
	}, strings.ToValidUTF8(name, "")))
}

// Proper reports whether a name has no invisible characters. With them it is that of another person, who must not get
// the roles of the one whom it looks like.
func Proper(name string) bool { return name != "" && clean(name) == name }

// foreign explains why a request is not for this server; empty if it is.
func (g *Guard) foreign(r *http.Request) string {
	name := strings.ToLower(host(r.Host))
	if len(g.cfg.Auth) > 0 {
		if len(g.cfg.Hosts) > 0 && !slices.Contains(g.cfg.Hosts, name) {
			return fmt.Sprintf("this server does not answer for host %.100q: if it should, add the name to server.hosts", name)
		}
		return ""
	}
	const remedy = ": without authentication this server only answers its own machine; configure server.auth"
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && !local.IP.IsLoopback() {
		return "the request came in on " + local.IP.String() + remedy
	}
	if addr, ok := remote(r); ok && !addr.IsLoopback() && r.Context().Value(http.LocalAddrContextKey) != nil {
		return "the request comes from " + addr.String() + remedy
	}
	for _, header := range []string{
		"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "Via",
	} {
		if r.Header.Get(header) != "" {
			return "the request came through a proxy (" + header + ")" + remedy
		}
	}
	// A page of another site may resolve its own name to this machine's address (DNS rebinding): then the browser sends
	// that name. A proxy may send ours, but the browser's origin is the proxy.
	origin := r.Header.Get("Origin")
	if u, err := url.Parse(origin); err == nil && u.Host != "" && !slices.Contains(g.cfg.Origins, origin) && g.local(name) {
		name = strings.ToLower(u.Hostname())
	}
	if g.local(name) {
		return ""
	}
	return fmt.Sprintf("the request is for host %.100q, which is not this machine (localhost, 127.0.0.1): if it is, add "+
		"the name to server.hosts", name)
}

// local reports whether a host is this machine.
func (g *Guard) local(name string) bool {
	addr, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil && addr.IsLoopback() || name == "localhost" || strings.HasSuffix(name, ".localhost") ||
		slices.Contains(g.cfg.Hosts, name)
}

func host(hostport string) string {
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		return h
	}
	return hostport
}

func headerSize(h http.Header) int {
	size := 0
	for name, values := range h {
		for _, value := range values {
			size += len(name) + len(value)
		}
	}
	return size
}

func tooMany(w http.ResponseWriter, r *http.Request, wait time.Duration) {
	seconds := max(1, int(math.Ceil(wait.Seconds())))
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	problem.Write(w, r, http.StatusTooManyRequests, fmt.Sprintf("too many requests: try again in %d s", seconds))
}

// IsLoopback reports whether only this machine can reach an address to listen on. A name counts when all of its
// addresses do.
func IsLoopback(address string) (bool, error) {
	name, _, err := net.SplitHostPort(address)
	if err != nil {
		return false, err
	}
	if name == "" {
		return false, nil // every interface
	}
	if addr, err := netip.ParseAddr(name); err == nil {
		return addr.Unmap().IsLoopback(), nil
	}
	return strings.EqualFold(name, "localhost"), nil
}
