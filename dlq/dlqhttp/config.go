package dlqhttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/access"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/operations"
	"github.com/redrive-go/redrive/dlq/dlqhttp/internal/problem"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/dlq/redrive"
	"github.com/redrive-go/redrive/dlq/wire"
)

// Config configures a [Handler]. The zero value of everything but Manager and Runner is the safe default.
type Config struct {
	// Manager has the dead letters. Required.
	Manager *dlq.Manager
	// Runner starts, shows and changes redrive runs. Required.
	Runner *redrive.Runner
	// Prefix is the path below which everything is served, such as /ops. Defaults to none.
	Prefix string
	// Auth identifies the sender of a request: the first authenticator that reads its credentials decides. Without any,
	// the server only answers this machine, whose users may do everything.
	Auth []Authenticator
	// Login lets people log in with an OpenID provider, alongside Auth. Nil means no login.
	Login *Login
	// PublicURL is where people reach this server. With https, or when the server itself uses TLS, browsers are instructed
	// to use nothing else.
	PublicURL string
	// Hosts are the host names that requests may be for, without port. Without Auth, localhost and the loopback
	// addresses are always among them; with Auth, an empty list allows any.
	Hosts []string
	// Origins are other browser origins (https://ops.example) that may change something.
	Origins []string
	// ReadOnly refuses everything that changes something.
	ReadOnly bool
	// Redaction hides what not everyone may see. Nil hides nothing.
	Redaction *redact.Rules
	// AuditReads records in the audit log who read which entry's message. A message is not shown if that fails, and the
	// audit log does not show what edits changed in it. Pages with messages do not refresh automatically.
	AuditReads bool
	// RevealTo is the lowest role that sees what Redaction hides. The zero Role means that no role does.
	RevealTo Role
	// Health reports on the components. Nil only checks the store. It is called for each /readyz and must return within
	// its context.
	Health func(context.Context) Health
	// Topology returns what the brokers have and what is planned, as something that JSON can show. With nil that route
	// answers 404.
	Topology func(context.Context) (any, error)
	// Depths counts the messages in the queues of the brokers, for the live screen. Nil counts nothing. It may return an
	// error together with the numbers of the brokers that did respond.
	Depths func(context.Context) ([]Depth, error)
	// Settings is the configuration to show to admins, without secrets. Nil shows none.
	Settings any
	// Rate is the rate at which the dashboard and the command start a run for which none is given, in messages per
	// second. 0 means no limit.
	Rate float64
	// Rules are the redrive rules that the program applies, to be shown.
	Rules []redrive.Rule
	// Retention is what the program applies, to be shown and previewed.
	Retention dlq.Retention
	// Metrics is served at /metrics, to every role. Nil serves none.
	Metrics http.Handler
	// Limits limit what a client may request.
	Limits Limits
	// ShowFaults answers a failed request with the error of the store, which is otherwise only logged, and shown to admins
	// by the dashboard. Set it for a handler that only its own user can reach.
	ShowFaults bool
	// Logger logs changes, refusals and faults. Defaults to slog.Default().
	Logger *slog.Logger

	// interval is the maximum age of what a page shows; tests change it.
	interval time.Duration
}

// Limits limit what a client may request. A zero field means its default.
type Limits = operations.Limits

// Depth is how many messages of one kind wait in a queue: a brokers.Depth, and the name of its broker.
type Depth = operations.Depth

// The caller, and what it may do.
type (
	// Role is what a caller may do: [Metrics] < [Viewer] < [Operator] < [Approver] < [Admin].
	Role = access.Role
	// Principal is the caller: the name for the audit log, and the role.
	Principal = access.Principal
	// Authenticator identifies the sender of a request; see [Config.Auth].
	Authenticator = access.Authenticator
	// AuthenticatorFunc turns a function into an Authenticator: for a separate login in front of the handler.
	AuthenticatorFunc = access.AuthenticatorFunc
)

// Errors of an [Authenticator].
var (
	// ErrNoCredentials means that the next authenticator is tried.
	ErrNoCredentials = access.ErrNoCredentials
	// ErrBadCredentials refuses the request.
	ErrBadCredentials = access.ErrBadCredentials
)

// The roles, the lowest first; each includes those before it.
const (
	Metrics  = access.Metrics
	Viewer   = access.Viewer
	Operator = access.Operator
	Approver = access.Approver
	Admin    = access.Admin
)

func (c *Config) setDefaults() {
	c.Logger = cmp.Or(c.Logger, slog.Default())
	c.Prefix = strings.TrimSuffix(c.Prefix, "/")
	if c.Login != nil {
		c.Auth = append(slices.Clone(c.Auth), c.Login)
	}
	l := &c.Limits
	l.Body, l.Import = cmp.Or(l.Body, 4<<20), cmp.Or(l.Import, 1<<30)
	l.Rate, l.Burst = cmp.Or(l.Rate, 50), cmp.Or(l.Burst, 200)
	l.Streams, l.Timeout = cmp.Or(l.Streams, 100), cmp.Or(l.Timeout, 30*time.Second)
}

func (c *Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Manager == nil {
		bad("Manager: required")
	}
	if c.Runner == nil {
		bad("Runner: required")
	}
	if c.Prefix != "" && (c.Prefix[0] != '/' || path.Clean(c.Prefix) != c.Prefix ||
		strings.ContainsAny(c.Prefix, "{}?#% ")) {
		bad("Prefix %q: a path such as /ops", c.Prefix)
	}
	for i, a := range c.Auth {
		if a == nil {
			bad("Auth[%d]: nil", i)
		}
	}
	if !(c.Rate >= 0) {
		bad("Rate %v: must not be negative", c.Rate)
	}
	l := &c.Limits
	if l.Body < 0 || l.Import < 0 || l.Burst < 1 || l.Streams < 1 || l.Timeout < 0 {
		bad("Limits %+v: must not be negative", *l)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("dlqhttp: %w", err)
	}
	return nil
}

// The state of the program.
type (
	// Health is the state of the program and of each of its components; see [Config.Health].
	Health = wire.Health
	// Component is the state of a component that the program needs.
	Component = wire.Component
)

// The states of a program and of a component.
const (
	StatusOK      = wire.StatusOK
	StatusFailing = wire.StatusFailing
)

// publicInterval is the maximum age of the health for callers without credentials.
const publicInterval = 5 * time.Second

// publicHealth caches the health for callers without credentials: they cost the components one check per interval, no
// matter how many ask, and learn which of them fail, but not why.
type publicHealth struct {
	mu   sync.Mutex
	at   time.Time
	kept Health
}

func (p *publicHealth) report(ctx context.Context, health func(context.Context) Health) Health {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.at) < publicInterval {
		return p.kept
	}
	report := health(context.WithoutCancel(ctx)) // others wait for it, too
	p.kept = Health{Status: report.Status, Components: make(map[string]Component, len(report.Components))}
	for name, c := range report.Components {
		p.kept.Components[name] = Component{Status: c.Status}
	}
	p.at = time.Now()
	return p.kept
}

// Ways to authenticate.
type (
	// Token is a bearer token, given by its digest; see [Bearer].
	Token = access.Token
	// User is a user with a password; see [Basic].
	User = access.User
	// ProxyConfig specifies the headers of an authenticating reverse proxy; see [Proxy].
	ProxyConfig = access.ProxyConfig
)

// Bearer authenticates by "Authorization: Bearer <token>". Tokens are compared in constant time. Browsers may send the
// token as the password of basic authentication, with any user name. The error names every invalid token.
func Bearer(tokens ...Token) (Authenticator, error) { return access.Bearer(tokens...) }

// Basic authenticates by user name and password. All hashes should have the same cost: the time of a refusal reveals
// the users whose hash has a lower one. The error names every invalid user.
func Basic(users ...User) (Authenticator, error) { return access.Basic(users...) }

// Proxy authenticates by the headers of a reverse proxy, which are only trusted on connections from its addresses.
func Proxy(cfg ProxyConfig) (Authenticator, error) { return access.Proxy(cfg) }

// Stored authenticates by the tokens in a store, which redrive token creates and revokes. A revoked token is refused
// within five seconds. Put it before [Bearer], which refuses tokens that it does not know.
func Stored(store driver.Store, logger *slog.Logger) (Authenticator, error) {
	return access.Stored(store, logger)
}

// HashToken returns the digest of a token for [Token].
func HashToken(token string) string { return access.HashToken(token) }

// ParseRole reads metrics, viewer, operator, approver or admin.
func ParseRole(text string) (Role, error) { return access.ParseRole(text) }

// CheckAddress rejects an address that other machines could reach without authentication.
func CheckAddress(address string, auth []Authenticator) error {
	local, err := access.IsLoopback(address)
	if err != nil {
		return fmt.Errorf("dlqhttp: address %q: not host:port, such as 127.0.0.1:8321", address)
	}
	if !local && len(auth) == 0 {
		return fmt.Errorf("dlqhttp: address %s: %w: anyone who can reach it could read and change the dead letters: "+
			"configure server.auth (tokens, users, oidc or proxy), or listen on 127.0.0.1", address,
			ErrNoAuthentication)
	}
	return nil
}

// ErrNoAuthentication means that a server would be open to everyone.
var ErrNoAuthentication = errors.New("not a loopback address, and no authentication")

// IsLoopback reports whether only this machine can reach an address, host:port, to listen on.
func IsLoopback(address string) (bool, error) { return access.IsLoopback(address) }

// LoginConfig configures logins with an OpenID provider; see [NewLogin].
type LoginConfig = access.LoginConfig

// Login is how people log in; see [Config.Login].
type Login = access.Login

// NewLogin makes a Login. The error reports every fault of the configuration.
func NewLogin(cfg LoginConfig) (*Login, error) { return access.NewLogin(cfg) }

// loginRoutes are for callers without credentials.
func (h *Handler) loginRoutes(mux *access.Mux, guard *access.Guard) {
	if h.cfg.Login == nil {
		return
	}
	prefix := h.cfg.Prefix
	mux.Route("GET "+prefix+access.LoginPath, access.None, false, guard.Open(http.HandlerFunc(h.startLogin)))
	mux.Route("GET "+prefix+access.CallbackPath, access.None, false, guard.Open(http.HandlerFunc(h.finishLogin)))
	mux.Route("POST "+prefix+access.LogoutPath, access.None, false, guard.Open(http.HandlerFunc(h.logout)))
}

func (h *Handler) startLogin(w http.ResponseWriter, r *http.Request) {
	if err := h.cfg.Login.Start(w, r); err != nil {
		h.cfg.Logger.ErrorContext(r.Context(), "a login could not begin", "error", err)
		h.plainPage(w, http.StatusServiceUnavailable, "The login provider does not answer", "Try again in a minute.",
			h.home())
	}
}

func (h *Handler) finishLogin(w http.ResponseWriter, r *http.Request) {
	who, to, err := h.cfg.Login.Finish(w, r)
	switch {
	case errors.Is(err, access.ErrLogin):
		h.cfg.Logger.WarnContext(r.Context(), "login rejected", "remote", r.RemoteAddr, "error", err)
		h.plainPage(w, http.StatusUnauthorized, "The login did not succeed", "Begin again. The server's log has the reason.",
			h.home())
	case err != nil:
		h.cfg.Logger.ErrorContext(r.Context(), "login failed", "error", err)
		h.plainPage(w, http.StatusServiceUnavailable, "The login failed", "Try again in a minute.", h.home())
	case who.Role <= access.None:
		h.cfg.Logger.WarnContext(r.Context(), "login without a role", "actor", who.Name, "remote", r.RemoteAddr)
		h.plainPage(w, http.StatusForbidden, "You have no role here",
			who.Name+" has no role on this server. Ask the people who run it.", "")
	default:
		h.cfg.Logger.InfoContext(r.Context(), "logged in", "actor", who.Name, "role", who.Role.String())
		http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // G710: a path of this server, see local
	}
}

func (h *Handler) logout(w http.ResponseWriter, r *http.Request) {
	if err := h.cfg.Login.End(w, r); err != nil {
		h.cfg.Logger.ErrorContext(r.Context(), "a logout failed", "error", err)
		problem.Write(w, r, http.StatusServiceUnavailable, "the store does not answer: you are still logged in")
		return
	}
	h.plainPage(w, http.StatusOK, "You are logged out", "You may still be logged in at the provider.", h.home())
}

func (h *Handler) home() string { return h.cfg.Prefix + "/" }

// unauthorized is the page for an unknown person; programs get a problem. It reports whether the request is a person's.
func (h *Handler) unauthorized(w http.ResponseWriter, r *http.Request) bool {
	if !problem.ForPerson(r) {
		return false
	}
	to := h.home() // nothing can be sent again after a login
	if h.cfg.Login != nil {
		if r.Method == http.MethodGet {
			to = r.URL.RequestURI()
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="redrive"`) // for Basic a browser would ask before the page
	}
	h.plainPage(w, http.StatusUnauthorized, "Log in to see this",
		"This server shows dead letters to people and programs that it knows.", to)
	return true
}

// plainPage is a page without styles and scripts. to, unless empty, is where a login leads.
func (h *Handler) plainPage(w http.ResponseWriter, status int, title, text, to string) {
	login := ""
	if h.cfg.Login != nil && to != "" {
		login = h.cfg.Prefix + access.LoginPath + "?" + url.Values{"to": {to}}.Encode()
	}
	problem.Page(w, status, title, text, login)
}
