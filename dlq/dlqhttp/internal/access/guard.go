package access

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/problem"
)

// ActorHeader says who somebody is where nobody is asked for credentials.
const ActorHeader = "X-Redrive-Actor"

const (
	// localName is who nobody has asked.
	localName = "local"
	maxActor  = 100
	// maxHeaders is how many bytes the headers of a request may have in all.
	maxHeaders = 32 << 10
)

// GuardConfig says whom a Guard lets through; dlqhttp.Config explains the fields.
type GuardConfig struct {
	Auth    []Authenticator
	Hosts   []string
	Origins []string
	Rate    float64
	Burst   int
	Logger  *slog.Logger
}

// Guard stands in front of everything: it finds out who asks, and refuses what is not for us.
type Guard struct {
	cfg      GuardConfig
	origins  *http.CrossOriginProtection
	requests *Limiter
	failures *Limiter // by address, for credentials that were wrong
}

// Failed attempts to say who one is, by address: so many at once, and one more in so many seconds.
const (
	failureBurst = 20
	failureRate  = 0.5
)

// NewGuard makes a Guard.
func NewGuard(cfg GuardConfig) (*Guard, error) {
	g := &Guard{
		cfg: cfg, origins: http.NewCrossOriginProtection(), requests: NewLimiter(cfg.Rate, cfg.Burst),
		failures: NewLimiter(failureRate, failureBurst),
	}
	for _, origin := range cfg.Origins {
		if err := g.origins.AddTrustedOrigin(origin); err != nil {
			return nil, fmt.Errorf("origin %q: %w", origin, err)
		}
	}
	return g, nil
}

// Protect lets those through to next who may come, with who they are in the context.
func (g *Guard) Protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok := g.admit(w, r)
		if !ok {
			return
		}
		client := who.Name
		if who.Unproven {
			client = host(r.RemoteAddr)
		}
		if wait, ok := g.requests.Allow(client); !ok {
			tooMany(w, wait)
			return
		}
		next.ServeHTTP(w, r.WithContext(WithPrincipal(r.Context(), who)))
	})
}

// Recognize puts into the context who asks if they say so rightly, and lets everybody through: for what is public in part.
func (g *Guard) Recognize(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := Principal{}
		if g.foreign(r) == "" && !g.guessing(r, host(r.RemoteAddr)) {
			who, _ = g.identify(r)
		}
		next.ServeHTTP(w, r.WithContext(WithPrincipal(r.Context(), who)))
	})
}

func (g *Guard) admit(w http.ResponseWriter, r *http.Request) (Principal, bool) {
	if size := headerSize(r.Header); size > maxHeaders {
		problem.Write(w, http.StatusRequestHeaderFieldsTooLarge, fmt.Sprintf("the headers have %d bytes: at most %d", size, maxHeaders))
		return Principal{}, false
	}
	if reason := g.foreign(r); reason != "" {
		g.cfg.Logger.WarnContext(r.Context(), "request refused", "reason", reason, "remote", r.RemoteAddr, "host", r.Host)
		problem.Write(w, http.StatusForbidden, reason)
		return Principal{}, false
	}
	if err := g.origins.Check(r); err != nil {
		g.cfg.Logger.WarnContext(r.Context(), "request of another site refused", "remote", r.RemoteAddr, "origin", r.Header.Get("Origin"))
		problem.Write(w, http.StatusForbidden, "a page of another site may not change anything here; list its origin (server.origins) if it may")
		return Principal{}, false
	}
	address := host(r.RemoteAddr)
	if g.guessing(r, address) {
		tooMany(w, time.Duration(float64(time.Second)/failureRate))
		return Principal{}, false
	}
	who, err := g.identify(r)
	switch {
	case err == nil && who.Role > None:
		return who, true
	case err == nil:
		problem.Write(w, http.StatusForbidden, who.Name+" has no role here")
	default:
		if !errors.Is(err, ErrNoCredentials) {
			wait, ok := g.failures.Allow(address)
			if !ok {
				tooMany(w, wait)
				return Principal{}, false
			}
			g.cfg.Logger.WarnContext(r.Context(), "credentials refused", "remote", r.RemoteAddr, "error", err)
		}
		w.Header().Add("WWW-Authenticate", `Bearer realm="redrive"`)
		w.Header().Add("WWW-Authenticate", `Basic realm="redrive", charset="UTF-8"`)
		problem.Write(w, http.StatusUnauthorized, "say who you are: Authorization: Bearer <token>, or user and password")
	}
	return Principal{}, false
}

// guessing reports whether a password is not to be looked at: many from this address were wrong, and this one was never right before.
// Tokens are looked at, so that nobody is kept out by a neighbour who guesses.
func (g *Guard) guessing(r *http.Request, address string) bool {
	if _, _, password := r.BasicAuth(); !password || !g.failures.Spent(address) {
		return false
	}
	for _, a := range g.cfg.Auth {
		if knows, ok := a.(interface{ Known(*http.Request) bool }); ok && knows.Known(r) {
			return false
		}
	}
	return true
}

// identify asks the authenticators.
func (g *Guard) identify(r *http.Request) (Principal, error) {
	if len(g.cfg.Auth) == 0 {
		return Principal{Name: actor(r), Role: Admin, Unproven: true}, nil
	}
	for _, a := range g.cfg.Auth {
		who, err := a.Authenticate(r)
		if !errors.Is(err, ErrNoCredentials) {
			return who, err
		}
	}
	if r.Header.Get("Authorization") != "" {
		return Principal{}, ErrBadCredentials // that none of them could read
	}
	return Principal{}, ErrNoCredentials
}

// actor is who somebody says to be.
func actor(r *http.Request) string {
	name := strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return -1
		}
		return c
	}, r.Header.Get(ActorHeader))
	if name = strings.TrimSpace(name); name == "" || len(name) > maxActor {
		return localName
	}
	return name
}

// foreign says why a request is not for us; empty when it is.
func (g *Guard) foreign(r *http.Request) string {
	name := strings.ToLower(host(r.Host))
	if len(g.cfg.Auth) > 0 {
		if len(g.cfg.Hosts) > 0 && !slices.Contains(g.cfg.Hosts, name) {
			return fmt.Sprintf("this server is not %.100q: list the name (server.hosts) if it is", name)
		}
		return ""
	}
	const remedy = ": this server has no authentication and answers to its own machine only; configure server.auth"
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok && !local.IP.IsLoopback() {
		return "the request came in on " + local.IP.String() + remedy
	}
	if addr, ok := remote(r); ok && !addr.IsLoopback() && r.Context().Value(http.LocalAddrContextKey) != nil {
		return "the request comes from " + addr.String() + remedy
	}
	for _, header := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip"} {
		if r.Header.Get(header) != "" {
			return "the request came through a proxy (" + header + ")" + remedy
		}
	}
	// A page of another site may give its own name this machine's address (DNS rebinding): then the browser sends that name.
	if addr, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil && addr.IsLoopback() ||
		name == "localhost" || strings.HasSuffix(name, ".localhost") || slices.Contains(g.cfg.Hosts, name) {
		return ""
	}
	return fmt.Sprintf("the request is for host %.100q, which is not this machine (localhost, 127.0.0.1): list the name (server.hosts) if it is", name)
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

func tooMany(w http.ResponseWriter, wait time.Duration) {
	seconds := max(1, int(math.Ceil(wait.Seconds())))
	w.Header().Set("Retry-After", strconv.Itoa(seconds))
	problem.Write(w, http.StatusTooManyRequests, fmt.Sprintf("too many requests: try again in %d s", seconds))
}

// IsLoopback reports whether nobody but this machine reaches an address to listen on. A name counts when all of its addresses do.
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
