package access

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
)

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

// cookie is the full name of a cookie.
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
