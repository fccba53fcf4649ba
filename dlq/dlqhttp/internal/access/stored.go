package access

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
)

// stored are the tokens in a store. Each is read again after a few seconds, so that a revoked one is soon refused.
type stored struct {
	store   driver.PeopleStore
	logger  *slog.Logger
	lookups *Limiter

	mu    sync.Mutex
	known map[string]*knownToken
}

type knownToken struct {
	token driver.Token
	read  time.Time
	used  time.Time // when the use was last recorded
}

// useEvery is how often the use of a token is recorded.
const useEvery = time.Minute

// Stored authenticates by the tokens in a store; see [driver.PeopleStore].
func Stored(store driver.Store, logger *slog.Logger) (Authenticator, error) {
	people, ok := driver.As[driver.PeopleStore](store)
	if !ok {
		return nil, errors.New("this store keeps no tokens")
	}
	return &stored{
		store: people, logger: logger, lookups: NewLimiter(lookupRate, lookupBurst), known: map[string]*knownToken{},
	}, nil
}

// Authenticate leaves a token that is not in the store to the other authenticators: it may be one of the configuration,
// or a user's password.
func (s *stored) Authenticate(r *http.Request) (Principal, error) {
	text, _, ok := tokenOf(r)
	if !ok || text == "" {
		return Principal{}, ErrNoCredentials
	}
	digest, now := HashToken(text), driver.Now(r.Context(), s.store)
	token, err := s.find(r, digest, now)
	if err != nil {
		return Principal{}, err
	}
	role, err := ParseRole(token.Role)
	if err != nil || !token.Valid(now) {
		return Principal{}, ErrBadCredentials
	}
	s.use(r.Context(), digest, now)
	return Principal{Name: token.Name, Role: role}, nil
}

// Known reports whether the token was valid before.
func (s *stored) Known(r *http.Request) bool {
	text, _, ok := tokenOf(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	return ok && s.known[HashToken(text)] != nil
}

// find looks in the store, unless it did so a moment ago. For an address that guesses, tokens that were never valid are
// not looked up.
func (s *stored) find(r *http.Request, digest string, now time.Time) (*driver.Token, error) {
	s.mu.Lock()
	k := s.known[digest]
	if k != nil && now.Sub(k.read) < knownFor {
		defer s.mu.Unlock()
		token := k.token
		return &token, nil
	}
	s.mu.Unlock()
	address := host(r.RemoteAddr)
	if k == nil && s.lookups.Spent(address) {
		return nil, ErrNoCredentials
	}
	token, err := s.store.Token(r.Context(), digest)
	if errors.Is(err, driver.ErrNotFound) {
		s.lookups.Allow(address)
		return nil, ErrNoCredentials
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if k = s.known[digest]; k == nil {
		if len(s.known) >= maxSessions {
			clear(s.known)
		}
		k = &knownToken{}
		s.known[digest] = k
	}
	k.token, k.read = *token, now
	return token, nil
}

// use records that a token was used, once a minute. A failure is logged, and refuses no caller.
func (s *stored) use(ctx context.Context, digest string, now time.Time) {
	s.mu.Lock()
	k := s.known[digest]
	due := k != nil && now.Sub(k.used) >= useEvery
	if due {
		k.used = now
	}
	s.mu.Unlock()
	if !due {
		return
	}
	if err := s.store.UseToken(ctx, digest, now); err != nil {
		s.logger.WarnContext(ctx, "the use of a token could not be noted", "error", err)
	}
}
