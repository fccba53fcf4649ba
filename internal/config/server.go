package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/lmittmann/tint"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/dlq"
	"github.com/redrive-go/redrive/dlq/dlqhttp"
	"github.com/redrive-go/redrive/dlq/driver"
	"github.com/redrive-go/redrive/dlq/redact"
	"github.com/redrive-go/redrive/envelope"
)

// Server is where redrive serve listens and which callers it accepts.
type Server struct {
	Address    string         `yaml:"address" jsonschema:"description=host:port to listen on; 127.0.0.1:8321 if not given. Anything but loopback needs auth.,example=127.0.0.1:8321"`
	PublicURL  string         `yaml:"public_url" jsonschema:"description=URL at which people reach the server.,example=https://redrive.example"`
	Prefix     string         `yaml:"prefix" jsonschema:"description=Path below which everything is served; none if not given.,example=/ops"`
	Hosts      []string       `yaml:"hosts" jsonschema:"description=Host names at which the server answers; any\\, if there is auth and this is not given."`
	Origins    []string       `yaml:"origins" jsonschema:"description=Other origins from which browsers may make changes.,example=https://ops.example"`
	ReadOnly   bool           `yaml:"read_only" jsonschema:"description=Refuse every change over HTTP."`
	AuditReads bool           `yaml:"audit_reads" jsonschema:"description=Record in the audit log who looks at which message."`
	TLS        TLS            `yaml:"tls" jsonschema:"description=Serve HTTPS."`
	Auth       Auth           `yaml:"auth" jsonschema:"description=Who may use the server\\, and for what; without it only this machine may."`
	Limits     dlqhttp.Limits `yaml:"limits" jsonschema:"description=Limits on clients' requests."`
}

// TLS names the files of a certificate.
type TLS struct {
	Certificate string `yaml:"certificate" jsonschema:"description=PEM file with the certificate and its chain."`
	Key         string `yaml:"key" jsonschema:"description=PEM file with its private key."`
}

// Auth configures the callers and their roles.
type Auth struct {
	Tokens []Token `yaml:"tokens" jsonschema:"description=Bearer tokens; redrive config hash-token makes one."`
	Users  []User  `yaml:"users" jsonschema:"description=Users with a password; redrive config hash-password hashes one."`
	OIDC   *OIDC   `yaml:"oidc" jsonschema:"description=An OpenID provider with which people log in; needs server.public_url."`
	Stored bool    `yaml:"stored" jsonschema:"description=Accept the tokens that redrive token creates\\, which the store keeps."`
	Proxy  *Proxy  `yaml:"proxy" jsonschema:"description=A reverse proxy that authenticates people."`
}

// Token is a bearer token.
type Token struct {
	Name string `yaml:"name" jsonschema:"required,description=Appears in the audit log."`
	Role string `yaml:"role" jsonschema:"required,description=Role of the bearer.,enum=metrics,enum=viewer,enum=operator,enum=approver,enum=admin"`
	Hash string `yaml:"hash" jsonschema:"required,description=sha256: and the digest of the token in hex; never the token itself."`
}

// User is a person with a password.
type User struct {
	Name string `yaml:"name" jsonschema:"required,description=Appears in the audit log."`
	Role string `yaml:"role" jsonschema:"required,description=Role of the user.,enum=metrics,enum=viewer,enum=operator,enum=approver,enum=admin"`
	Hash string `yaml:"hash" jsonschema:"required,description=bcrypt hash of the password; never the password itself."`
}

// Proxy is a reverse proxy that authenticates.
type Proxy struct {
	From         []string          `yaml:"from" jsonschema:"required,description=Addresses that the proxy connects from: 10.0.0.7 or 10.0.0.0/8."`
	UserHeader   string            `yaml:"user_header" jsonschema:"description=Header with the user's name; X-Forwarded-User if not given."`
	GroupsHeader string            `yaml:"groups_header" jsonschema:"description=Header with the user's groups; X-Forwarded-Groups if not given."`
	Users        map[string]string `yaml:"users" jsonschema:"description=Roles of users."`
	Groups       map[string]string `yaml:"groups" jsonschema:"description=Roles of groups; a user in several has the highest."`
	DefaultRole  string            `yaml:"default_role" jsonschema:"enum=viewer,enum=operator,enum=approver,enum=admin,description=Role of people in neither; without it they are refused."`
}

// Redaction configures what some roles do not see.
type Redaction struct {
	Paths    []string `yaml:"paths" jsonschema:"description=Places in JSON payloads that are hidden: $.card.number or $..iban."`
	Headers  []string `yaml:"headers" jsonschema:"description=Headers whose values are hidden (and the fields of entries that are read from them); * matches any characters."`
	Texts    []string `yaml:"texts" jsonschema:"description=Regular expressions whose matches are hidden in errors\\, traces\\, notes\\, headers and payloads."`
	RevealTo string   `yaml:"reveal_to" jsonschema:"enum=viewer,enum=operator,enum=approver,enum=admin,description=Lowest role that sees hidden values; no role if not given."`
}

// Authenticators makes the authenticators of Auth. The error lists every fault.
func (a *Auth) Authenticators() ([]dlqhttp.Authenticator, error) {
	var (
		list []dlqhttp.Authenticator
		errs []error
	)
	add := func(auth dlqhttp.Authenticator, err error) {
		list = append(list, auth)
		errs = append(errs, err)
	}
	var roles roles
	if len(a.Tokens) > 0 {
		tokens := make([]dlqhttp.Token, 0, len(a.Tokens))
		for _, t := range a.Tokens {
			tokens = append(tokens, dlqhttp.Token{Name: t.Name, Role: roles.read(t.Role), SHA256: t.Hash})
		}
		add(dlqhttp.Bearer(tokens...))
	}
	if len(a.Users) > 0 {
		users := make([]dlqhttp.User, 0, len(a.Users))
		for _, u := range a.Users {
			users = append(users, dlqhttp.User{Name: u.Name, Role: roles.read(u.Role), Bcrypt: u.Hash})
		}
		add(dlqhttp.Basic(users...))
	}
	if p := a.Proxy; p != nil {
		add(dlqhttp.Proxy(dlqhttp.ProxyConfig{
			From: p.From, UserHeader: p.UserHeader, GroupsHeader: p.GroupsHeader, Users: roles.of(p.Users),
			Groups: roles.of(p.Groups), Default: roles.read(p.DefaultRole),
		}))
	}
	if err := errors.Join(append(roles.faults, errs...)...); err != nil {
		return nil, fmt.Errorf("server.auth: %w", err)
	}
	return list, nil
}

// Rules returns what is hidden, nil when nothing is, and the lowest role that sees it.
func (r *Redaction) Rules() (*redact.Rules, dlqhttp.Role, error) {
	rules, err := redact.New(redact.Config{Paths: r.Paths, Headers: r.Headers, Texts: r.Texts})
	if err != nil {
		return nil, 0, fmt.Errorf("redaction: %w", err)
	}
	var roles roles
	reveal := roles.read(r.RevealTo)
	if err := errors.Join(roles.faults...); err != nil {
		return nil, 0, fmt.Errorf("redaction.reveal_to: %w", err)
	}
	if rules.Empty() {
		rules = nil
	}
	return rules, reveal, nil
}

// validate reports every fault that can be found without listening.
func (s *Server) validate() error {
	var f faults
	auth, err := s.Auth.Authenticators()
	if s.Auth.OIDC != nil || s.Auth.Stored {
		auth = append(auth, nil) // made when the store is open
	}
	shown := append([]string{s.PublicURL}, s.Origins...)
	if o := s.Auth.OIDC; o != nil {
		shown = append(shown, o.Issuer)
		if _, err := o.login(); err != nil {
			f.add("server.auth.oidc: %w", err)
		}
		if o.Issuer == "" || o.ClientID == "" || s.PublicURL == "" {
			f.add("server.auth.oidc: issuer, client_id and server.public_url are required")
		}
	}
	if err == nil {
		if err = dlqhttp.CheckAddress(s.Address, auth); err != nil {
			err = fmt.Errorf("server.address: %w", err)
		}
	}
	f = append(f, err)
	if slices.ContainsFunc(shown, func(address string) bool {
		u, err := url.Parse(address)
		return err != nil || u.User != nil
	}) {
		f.add("server.public_url, origins and auth.oidc.issuer: must be URLs without user and password, which people see")
	}
	if (s.TLS.Certificate == "") != (s.TLS.Key == "") {
		f.add("server.tls: certificate and key go together")
	}
	for _, h := range s.Hosts {
		if _, _, err := net.SplitHostPort(h); err == nil {
			f.add("server.hosts: %s: without the port", h)
		}
	}
	return errors.Join(f...)
}

// OIDC is an OpenID provider with which people log in.
type OIDC struct {
	Issuer       string            `yaml:"issuer" jsonschema:"required,description=The provider: https://login.example."`
	ClientID     string            `yaml:"client_id" jsonschema:"required,description=Id of this server at the provider."`
	ClientSecret string            `yaml:"client_secret" jsonschema:"description=Secret of this server; empty for a public client."`
	Scopes       []string          `yaml:"scopes" jsonschema:"description=Scopes to request; openid profile email groups if not given."`
	NameClaim    string            `yaml:"name_claim" jsonschema:"description=Claim that appears in the audit log; email if not given."`
	GroupsClaim  string            `yaml:"groups_claim" jsonschema:"description=Claim with the groups; groups if not given."`
	Users        map[string]string `yaml:"users" jsonschema:"description=Roles of users."`
	Groups       map[string]string `yaml:"groups" jsonschema:"description=Roles of groups; a user in several has the highest."`
	DefaultRole  string            `yaml:"default_role" jsonschema:"description=Role of people in neither; without it they are refused.,enum=viewer,enum=operator,enum=approver,enum=admin"`
	Session      time.Duration     `yaml:"session" jsonschema:"description=How long a session lasts; 8h if not given."`
}

// Login returns how people log in; nil without a provider. The sessions are in the store.
func (s *Server) Login(store dlq.Store) (*dlqhttp.Login, error) {
	if s.Auth.OIDC == nil {
		return nil, nil //nolint:nilnil // no login is configured
	}
	cfg, err := s.Auth.OIDC.login()
	if err != nil {
		return nil, err
	}
	cfg.PublicURL, cfg.Store = s.PublicURL, store
	return dlqhttp.NewLogin(cfg)
}

// login converts it to dlqhttp's.
func (o *OIDC) login() (dlqhttp.LoginConfig, error) {
	var roles roles
	cfg := dlqhttp.LoginConfig{
		Issuer: o.Issuer, ClientID: o.ClientID, ClientSecret: o.ClientSecret, Scopes: o.Scopes, NameClaim: o.NameClaim,
		GroupsClaim: o.GroupsClaim, Users: roles.of(o.Users), Groups: roles.of(o.Groups),
		Default: roles.read(o.DefaultRole), Session: o.Session,
	}
	return cfg, errors.Join(roles.faults...)
}

// roles reads roles, and collects the faults.
type roles struct{ faults }

// read reads a role that may be left out.
func (r *roles) read(text string) (role dlqhttp.Role) {
	if text != "" {
		role = r.of(map[string]string{"": text})[""]
	}
	return role
}

// of reads the roles of names.
func (r *roles) of(texts map[string]string) map[string]dlqhttp.Role {
	found := make(map[string]dlqhttp.Role, len(texts))
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		role, err := dlqhttp.ParseRole(texts[name])
		found[name], r.faults = role, append(r.faults, err)
	}
	return found
}

// level reads the level; empty is info.
func (l *Log) level() (level slog.Level, err error) {
	if err = level.UnmarshalText([]byte(cmp.Or(l.Level, "info"))); err != nil || strings.ContainsAny(l.Level, "+-") {
		return 0, fmt.Errorf("log.level: %q: debug, info, warn or error", l.Level)
	}
	return level, nil
}

// Logger makes a logger that writes to w, in colour if w is a terminal. It redacts by the rules; nil rules hide
// nothing.
func (l *Log) Logger(w io.Writer, colour bool, rules *redact.Rules) *slog.Logger {
	level, _ := l.level() // checked by Validate
	replace := func(groups []string, a slog.Attr) slog.Attr {
		return rules.LogAttr(groups, envelope.LevelName(groups, a))
	}
	switch {
	case l.Format == "json":
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: replace}))
	case colour:
		return slog.New(tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: "15:04:05.000", ReplaceAttr: replace}))
	default:
		return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: replace}))
	}
}

const hidden = "xxxxx"

// Redacted returns a copy without passwords, for display.
func (c *Config) Redacted() *Config {
	out := *c
	if u, err := driver.ParseURL(c.Store.URL); err != nil || u.Scheme != "sqlite" || u.Opaque == "" {
		out.Store.URL = brokers.Redact(c.Store.URL)
	}
	out.Brokers = make(map[string]Broker, len(c.Brokers))
	for name, b := range c.Brokers {
		b.Config = b.Redacted()
		out.Brokers[name] = b
	}
	out.Notifications.Receivers = slices.Clone(c.Notifications.Receivers)
	for i := range out.Notifications.Receivers {
		redactReceiver(&out.Notifications.Receivers[i])
	}
	out.Server.Auth.Tokens, out.Server.Auth.Users = slices.Clone(c.Server.Auth.Tokens), slices.Clone(c.Server.Auth.Users)
	for i := range out.Server.Auth.Tokens {
		out.Server.Auth.Tokens[i].Hash = hidden
	}
	for i := range out.Server.Auth.Users {
		out.Server.Auth.Users[i].Hash = hidden
	}
	if o := c.Server.Auth.OIDC; o != nil && o.ClientSecret != "" {
		shown := *o
		shown.ClientSecret = hidden
		out.Server.Auth.OIDC = &shown
	}
	return &out
}
