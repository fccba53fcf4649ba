package access

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"

	"github.com/redrive-go/redrive/dlq/driver"
)

// LoginConfig configures logins with an OpenID provider: by the authorization code flow with PKCE. People's roles
// follow from their groups when they log in, and last until their session ends.
type LoginConfig struct {
	// Issuer is the provider, as in its discovery document: https://login.example. Required. It is contacted when the
	// first person logs in.
	Issuer string
	// ClientID and ClientSecret identify this server to the provider. The secret is empty for a public client.
	ClientID, ClientSecret string
	// PublicURL is where people reach this server, including its prefix. The provider must allow PublicURL +
	// "/login/callback". Required. With https, cookies are only sent that way, and browsers are instructed to use nothing
	// else.
	PublicURL string
	// Scopes are the requested scopes. Defaults to openid, profile, email and groups.
	Scopes []string
	// NameClaim is the claim for the audit log, which must never be reassigned to another person. Defaults to email, which
	// must be verified.
	NameClaim string
	// GroupsClaim has the groups, as a list. Defaults to groups.
	GroupsClaim string
	// Users and Groups are the roles of users and members of groups; the highest counts. Default is the role of users in
	// neither; None refuses them.
	Users, Groups map[string]Role
	Default       Role
	// Session is how long a session lasts. Defaults to 8 h.
	Session time.Duration
	// Store keeps the sessions, by the digests of their cookies. Required.
	Store driver.Store
	// Client makes requests to the provider. Defaults to one with a timeout of 10 s.
	Client *http.Client
}

// Login logs people in by the authorization code flow with PKCE. It is safe for concurrent use.
type Login struct {
	*Sessions

	cfg    LoginConfig
	prefix string

	discovery singleflight.Group
	provider  atomic.Pointer[oidc.Provider]
}

// Paths of a login, below the prefix.
const (
	LoginPath    = "/login"
	CallbackPath = "/login/callback"
	LogoutPath   = "/logout"
)

const (
	defaultSession = 8 * time.Hour
	// atProvider is how long a person may take at the provider.
	atProvider      = 10 * time.Minute
	providerTimeout = 10 * time.Second
	// maxFlow is the maximum size of a login's cookie: browsers keep no cookie of more than 4 KiB.
	maxFlow = 3500
)

// NewLogin makes a Login. The provider is contacted when the first person logs in, so that a server starts without it.
func NewLogin(cfg LoginConfig) (*Login, error) {
	var errs []error
	public, err := url.Parse(cfg.PublicURL)
	if err != nil || public.Host == "" || public.Scheme != "https" && public.Scheme != "http" {
		errs = append(errs, fmt.Errorf("login: public URL %q: where people reach this server, such as "+
			"https://redrive.example", cfg.PublicURL))
		public = &url.URL{}
	}
	if cfg.Issuer == "" || cfg.ClientID == "" {
		errs = append(errs, errors.New("login: an issuer and a client id are required"))
	}
	if len(cfg.Users)+len(cfg.Groups) == 0 && cfg.Default <= None {
		errs = append(errs, errors.New("login: no one has a role: give users, groups or default_role"))
	}
	store, ok := driver.As[driver.PeopleStore](cfg.Store)
	if !ok {
		errs = append(errs, fmt.Errorf("login: %T keeps no sessions", cfg.Store))
	}
	if len(cfg.Scopes) == 0 {
		cfg.Scopes = []string{oidc.ScopeOpenID, "profile", "email", "groups"}
	}
	cfg.NameClaim, cfg.GroupsClaim = cmp.Or(cfg.NameClaim, "email"), cmp.Or(cfg.GroupsClaim, "groups")
	if cfg.Session <= 0 {
		cfg.Session = defaultSession
	}
	cfg.Client = cmp.Or(cfg.Client, &http.Client{Timeout: providerTimeout})
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return &Login{
		Sessions: NewSessions(store, cfg.Session, public.Scheme == "https"), cfg: cfg,
		prefix: strings.TrimSuffix(public.Path, "/"),
	}, nil
}

// discovered returns the provider, and us as its client. Logins at the same time share one attempt: with a provider
// that does not answer, each would otherwise wait for the timeouts of all before it.
func (l *Login) discovered(ctx context.Context) (*oidc.Provider, *oauth2.Config, error) {
	if l.provider.Load() == nil {
		_, err, _ := l.discovery.Do("", func() (any, error) {
			// The keys are fetched with this context whenever they change: it must not be the request's.
			p, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), l.cfg.Client), l.cfg.Issuer)
			if err == nil {
				l.provider.Store(p)
			}
			return nil, err
		})
		if err != nil {
			return nil, nil, fmt.Errorf("login: provider %s: %w", l.cfg.Issuer, err)
		}
	}
	p := l.provider.Load()
	return p, &oauth2.Config{
		ClientID: l.cfg.ClientID, ClientSecret: l.cfg.ClientSecret, Endpoint: p.Endpoint(), Scopes: l.cfg.Scopes,
		RedirectURL: strings.TrimSuffix(l.cfg.PublicURL, "/") + CallbackPath,
	}, nil
}

// Start sends a person to the provider. A separate cookie has what they must return with: a state, a nonce and the
// verifier of PKCE.
func (l *Login) Start(w http.ResponseWriter, r *http.Request) error {
	_, client, err := l.discovered(r.Context())
	if err != nil {
		return err
	}
	state, nonce, verifier := oauth2.GenerateVerifier(), oauth2.GenerateVerifier(), oauth2.GenerateVerifier()
	kept := url.Values{
		"state": {state}, "nonce": {nonce}, "verifier": {verifier}, "to": {local(r.URL.Query().Get("to"), l.prefix)},
	}
	if len(kept.Encode()) > maxFlow {
		kept.Set("to", l.prefix+"/")
	}
	l.set(w, l.cookie(flowCookie), kept.Encode(), atProvider)
	http.Redirect(w, r, client.AuthCodeURL(state, oidc.Nonce(nonce), oauth2.S256ChallengeOption(verifier)),
		http.StatusFound)
	return nil
}

// ErrLogin means that a login failed and has to start over.
var ErrLogin = errors.New("the login did not succeed")

// Finish handles a person's return from the provider, and begins their session. It returns who they are, and where they
// wanted to go; the error wraps [ErrLogin] when the provider, or what they bring, does not prove it.
func (l *Login) Finish(w http.ResponseWriter, r *http.Request) (who Principal, to string, err error) {
	c, err := r.Cookie(l.cookie(flowCookie))
	if err != nil {
		return who, "", fmt.Errorf("%w: it was not started in this browser, or too long ago", ErrLogin)
	}
	l.set(w, l.cookie(flowCookie), "", -time.Second) // a login can only be used once
	kept, err := url.ParseQuery(c.Value)
	q := r.URL.Query()
	if err != nil || kept.Get("state") == "" ||
		subtle.ConstantTimeCompare([]byte(kept.Get("state")), []byte(q.Get("state"))) != 1 {
		return who, "", fmt.Errorf("%w: it was started elsewhere", ErrLogin)
	}
	if q.Get("error") != "" || q.Get("code") == "" {
		return who, "", fmt.Errorf("%w: the provider refused it: %.100s", ErrLogin, clean(q.Get("error")))
	}
	provider, client, err := l.discovered(r.Context())
	if err != nil {
		return who, "", err
	}
	ctx := oidc.ClientContext(r.Context(), l.cfg.Client)
	tokens, err := client.Exchange(ctx, q.Get("code"), oauth2.VerifierOption(kept.Get("verifier")))
	if err != nil {
		return who, "", fmt.Errorf("%w: the provider rejects the code: %w", ErrLogin, err)
	}
	raw, _ := tokens.Extra("id_token").(string)
	id, err := provider.Verifier(&oidc.Config{ClientID: l.cfg.ClientID}).Verify(ctx, raw)
	if err != nil {
		return who, "", fmt.Errorf("%w: %w", ErrLogin, err)
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(kept.Get("nonce"))) != 1 {
		return who, "", fmt.Errorf("%w: the provider's answer is of another login", ErrLogin)
	}
	claims, err := l.claims(ctx, provider, id, tokens)
	if err != nil {
		return who, "", err
	}
	if who, err = l.principal(claims); err != nil || who.Role <= None {
		return who, "", err
	}
	return who, local(kept.Get("to"), l.prefix), l.Begin(r.Context(), w, who)
}

// claims are those of the id token, and of the provider's user info if the token does not have all of them.
func (l *Login) claims(ctx context.Context, p *oidc.Provider, id *oidc.IDToken, tokens *oauth2.Token) (map[string]any,
	error,
) {
	claims := map[string]any{}
	if err := id.Claims(&claims); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLogin, err)
	}
	if err := l.verified(claims); err != nil {
		return nil, err // before the user info replaces it
	}
	if claims[l.cfg.NameClaim] != nil && (claims[l.cfg.GroupsClaim] != nil || len(l.cfg.Groups) == 0) ||
		p.UserInfoEndpoint() == "" {
		return claims, nil
	}
	info, err := p.UserInfo(ctx, oauth2.StaticTokenSource(tokens))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLogin, err)
	}
	if info.Subject != id.Subject {
		return nil, fmt.Errorf("%w: the provider returned another user", ErrLogin)
	}
	if err := info.Claims(&claims); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLogin, err)
	}
	return claims, nil
}

// verified refuses an address that its provider has not verified: anyone could have entered it. Some providers send the
// claim as text.
func (l *Login) verified(claims map[string]any) error {
	verified, given := claims["email_verified"]
	if l.cfg.NameClaim != "email" || !given || verified == true || verified == "true" {
		return nil
	}
	return fmt.Errorf("%w: the provider has not verified the address %.100v", ErrLogin, claims["email"])
}

func (l *Login) principal(claims map[string]any) (Principal, error) {
	name, _ := claims[l.cfg.NameClaim].(string)
	if !Proper(name) {
		return Principal{}, fmt.Errorf("%w: the provider returned no readable %s", ErrLogin, l.cfg.NameClaim)
	}
	if err := l.verified(claims); err != nil {
		return Principal{}, err
	}
	role := max(l.cfg.Default, l.cfg.Users[name])
	groups, _ := claims[l.cfg.GroupsClaim].([]any)
	for _, g := range groups {
		if group, ok := g.(string); ok {
			role = max(role, l.cfg.Groups[group])
		}
	}
	return Principal{Name: name, Role: role}, nil
}

// Sessions are people who have logged in, identified by a cookie whose digest is in the store. It is safe for
// concurrent use.
type Sessions struct {
	store driver.PeopleStore
	// secure means HTTPS: then the cookie is only sent that way, and no other host of the domain can set it.
	secure  bool
	life    time.Duration
	lookups *Limiter
	known   known[string, knownSession]
}

type knownSession struct {
	who   Principal
	until time.Time
}

// NewSessions makes Sessions that last this long after the login.
func NewSessions(store driver.PeopleStore, life time.Duration, secure bool) *Sessions {
	return &Sessions{
		store: store, secure: secure, life: life, lookups: NewLimiter(lookupRate, lookupBurst),
	}
}

// The cookies of a session, and of a person who is at the provider.
const sessionCookie, flowCookie = "redrive_session", "redrive_login"

func (s *Sessions) cookie(name string) string {
	if s.secure {
		return "__Host-" + name
	}
	return name
}

// Authenticate finds a cookie's session. An unknown cookie is not a wrong credential: sessions expire, and 26 random
// letters cannot be guessed.
func (s *Sessions) Authenticate(r *http.Request) (Principal, error) {
	c, err := r.Cookie(s.cookie(sessionCookie))
	if err != nil || c.Value == "" || r.Header.Get("Authorization") != "" {
		return Principal{}, ErrNoCredentials
	}
	digest, now := HashToken(c.Value), driver.Now(r.Context(), s.store)
	known, ok := s.known.get(digest)
	if ok && now.Before(known.until) {
		return known.who, nil
	}
	// A cookie that was valid before is looked up no matter what others at its address, which may be a proxy's, have
	// guessed.
	if !ok && s.lookups.Spent(host(r.RemoteAddr)) {
		return Principal{}, ErrNoCredentials
	}
	session, err := s.store.Session(r.Context(), digest, now)
	if errors.Is(err, driver.ErrNotFound) {
		s.lookups.Allow(host(r.RemoteAddr))
		s.known.forget(digest)
		return Principal{}, ErrNoCredentials
	}
	if err != nil {
		return Principal{}, err
	}
	role, err := ParseRole(session.Role)
	if err != nil {
		return Principal{}, ErrNoCredentials
	}
	who := Principal{Name: session.Name, Role: role}
	s.remember(digest, who, now, session.ExpiresAt)
	return who, nil
}

// remember trusts a session for a while, but not longer than it lasts.
func (s *Sessions) remember(digest string, who Principal, now, expires time.Time) {
	until := now.Add(knownFor)
	if expires.Before(until) {
		until = expires
	}
	s.known.put(digest, knownSession{who, until})
}

// Begin logs a person in.
func (s *Sessions) Begin(ctx context.Context, w http.ResponseWriter, who Principal) error {
	secret, now := rand.Text(), driver.Now(ctx, s.store)
	session := driver.Session{
		Digest: HashToken(secret), Name: who.Name, Role: who.Role.String(), CreatedAt: now, ExpiresAt: now.Add(s.life),
	}
	if err := s.store.PutSession(ctx, session); err != nil {
		return err
	}
	s.remember(session.Digest, who, now, session.ExpiresAt)
	s.set(w, s.cookie(sessionCookie), secret, s.life)
	return nil
}

// HasSession reports whether the caller has a session.
func (s *Sessions) HasSession(r *http.Request) bool {
	c, err := r.Cookie(s.cookie(sessionCookie))
	return err == nil && c.Value != "" && r.Header.Get("Authorization") == ""
}

// End logs out.
func (s *Sessions) End(w http.ResponseWriter, r *http.Request) error {
	c, err := r.Cookie(s.cookie(sessionCookie))
	if err != nil {
		return nil //nolint:nilerr // no one is logged in
	}
	digest := HashToken(c.Value)
	if err := s.store.EndSession(r.Context(), digest); err != nil {
		return err
	}
	s.known.forget(digest)
	s.set(w, s.cookie(sessionCookie), "", -time.Second)
	return nil
}

// set sets a cookie that is hidden from scripts and other sites.
func (s *Sessions) set(w http.ResponseWriter, name, value string, life time.Duration) {
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // G124: Secure is set behind TLS
		Name: name, Value: value, Path: "/", MaxAge: int(life.Seconds()), HttpOnly: true, Secure: s.secure,
		SameSite: http.SameSiteLaxMode,
	})
}

// local is a path of this server to return to; it cannot lead elsewhere.
func local(path, prefix string) string {
	if !strings.HasPrefix(path, prefix+"/") || strings.HasPrefix(path, "//") || strings.ContainsAny(path, "\\\r\n\t") {
		return prefix + "/"
	}
	return path
}
