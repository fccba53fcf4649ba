package access

import (
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/redrive-go/redrive/dlq/driver"
)

// stored are the tokens in a store. Each is read again after a few seconds, so that a revoked one is soon refused.
type stored struct {
	store   driver.PeopleStore
	logger  *slog.Logger
	lookups *Limiter
	known   known[string, knownToken]
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
	return &stored{store: people, logger: logger, lookups: NewLimiter(lookupRate, lookupBurst)}, nil
}

// Authenticate leaves a token that is not in the store to the other authenticators: it may be one of the configuration,
// or a user's password. The use of a token is recorded once a minute; a failure to do so is logged, and refuses no
// caller.
func (s *stored) Authenticate(r *http.Request) (Principal, error) {
	text, _, ok := tokenOf(r)
	if !ok || text == "" {
		return Principal{}, ErrNoCredentials
	}
	digest, now := HashToken(text), driver.Now(r.Context(), s.store)
	k, err := s.find(r, digest, now)
	if err != nil {
		return Principal{}, err
	}
	role, err := ParseRole(k.token.Role)
	if err != nil || !k.token.Valid(now) {
		return Principal{}, ErrBadCredentials
	}
	if now.Sub(k.used) >= useEvery {
		k.used = now
		s.known.put(digest, k)
		if err := s.store.UseToken(r.Context(), digest, now); err != nil {
			s.logger.WarnContext(r.Context(), "the use of a token could not be recorded", "error", err)
		}
	}
	return Principal{Name: k.token.Name, Role: role}, nil
}

// Known reports whether the token was valid before.
func (s *stored) Known(r *http.Request) bool {
	text, _, ok := tokenOf(r)
	_, known := s.known.get(HashToken(text))
	return ok && known
}

// find looks in the store, unless it did so a moment ago. For an address that guesses, tokens that were never valid are
// not looked up.
func (s *stored) find(r *http.Request, digest string, now time.Time) (knownToken, error) {
	k, known := s.known.get(digest)
	if known && now.Sub(k.read) < knownFor {
		return k, nil
	}
	address := host(r.RemoteAddr)
	if !known && s.lookups.Spent(address) {
		return k, ErrNoCredentials
	}
	token, err := s.store.Token(r.Context(), digest)
	if errors.Is(err, driver.ErrNotFound) {
		s.lookups.Allow(address)
		return k, ErrNoCredentials
	}
	if err != nil {
		return k, err
	}
	k.token, k.read = *token, now
	s.known.put(digest, k)
	return k, nil
}
