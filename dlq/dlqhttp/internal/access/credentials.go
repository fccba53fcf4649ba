package access

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/redrive-go/redrive/dlq/driver"
)

// User is a user with a password.
type User struct {
	// Name appears in the audit log. Role is what they may do. Both are required.
	Name string
	Role Role
	// Bcrypt is the bcrypt hash of the password ($2a$..., cost 10 or more). Required.
	Bcrypt string
}

type basic struct {
	users map[string]User
	none  string // the hash to compare an unknown user's password with: the slowest
	// slots bound the comparisons at the same time, which take all of a processor each.
	slots chan struct{}
	// known are the correct passwords by their digest: bcrypt is slow on purpose, and would run for each request.
	known known[[sha256.Size]byte, bool]
}

// Basic authenticates by user name and password.
func Basic(users ...User) (Authenticator, error) {
	b := &basic{users: map[string]User{}, slots: make(chan struct{}, runtime.GOMAXPROCS(0))}
	var errs []error
	slowest := 0
	for i, u := range users {
		cost, err := bcrypt.Cost([]byte(u.Bcrypt))
		switch {
		case u.Name == "":
			errs = append(errs, fmt.Errorf("user %d: a name is required", i+1))
		case b.users[u.Name].Name != "":
			errs = append(errs, fmt.Errorf("duplicate user %s", u.Name))
		case u.Role <= None:
			errs = append(errs, fmt.Errorf("user %s: a role is required", u.Name))
		case err != nil:
			errs = append(errs, fmt.Errorf("user %s: hash: not a bcrypt hash; redrive config hash-password makes one", u.Name))
		case cost < bcrypt.DefaultCost:
			errs = append(errs, fmt.Errorf("user %s: hash: cost %d is too low: at least %d", u.Name, cost, bcrypt.DefaultCost))
		}
		if b.users[u.Name] = u; cost > slowest {
			slowest, b.none = cost, u.Bcrypt
		}
	}
	return b, errors.Join(errs...)
}

// Authenticate takes the same time for unknown users as for those whose hash costs the most.
func (b *basic) Authenticate(r *http.Request) (Principal, error) {
	name, password, ok := r.BasicAuth()
	if !ok {
		return Principal{}, ErrNoCredentials
	}
	user, there := b.users[name]
	who := Principal{Name: user.Name, Role: user.Role}
	if b.Known(r) {
		return who, nil
	}
	select {
	case b.slots <- struct{}{}:
		defer func() { <-b.slots }()
	case <-r.Context().Done():
		return Principal{}, r.Context().Err()
	}
	hash := cmp.Or(user.Bcrypt, b.none)
	if !b.Known(r) && (bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) != nil || !there) {
		return Principal{}, ErrBadCredentials
	}
	b.known.put(seenKey(&user, password), true)
	return who, nil
}

// Known reports whether these credentials were correct before. It costs nothing.
func (b *basic) Known(r *http.Request) bool {
	name, password, _ := r.BasicAuth()
	user, there := b.users[name]
	right, _ := b.known.get(seenKey(&user, password))
	return there && right
}

func seenKey(u *User, password string) [sha256.Size]byte {
	return sha256.Sum256([]byte(u.Name + "\x00" + u.Bcrypt + "\x00" + password))
}

// Token is a bearer token, stored as its digest.
type Token struct {
	// Name of its owner appears in the audit log. Role is what they may do. Both are required.
	Name string
	Role Role
	// SHA256 is the digest of the token in hex, as HashToken makes it. Required.
	SHA256 string
}

// hashPrefix may precede a digest, to name its kind.
const hashPrefix = "sha256:"

// HashToken returns the digest of a token for configurations. A token is random and long, so a fast digest is enough; a
// password is not a token.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hashPrefix + hex.EncodeToString(sum[:])
}

type bearer struct {
	tokens []Token
	sums   [][sha256.Size]byte
}

// Bearer authenticates by "Authorization: Bearer <token>". Browsers cannot send that on their own; they may send the
// token as the password of basic authentication, with any user name.
func Bearer(tokens ...Token) (Authenticator, error) {
	b := &bearer{tokens: tokens}
	var errs []error
	for i, t := range tokens {
		sum, err := hex.DecodeString(strings.TrimPrefix(t.SHA256, hashPrefix))
		switch {
		case err != nil || len(sum) != sha256.Size:
			errs = append(errs, fmt.Errorf("token %d (%s): hash: not %s and 64 hex digits; redrive config hash-token makes one",
				i+1, t.Name, hashPrefix))
			continue
		case t.Name == "":
			errs = append(errs, fmt.Errorf("token %d: a name is required", i+1))
		case t.Role <= None:
			errs = append(errs, fmt.Errorf("token %d (%s): a role is required", i+1, t.Name))
		}
		if slices.Contains(b.sums, [sha256.Size]byte(sum)) {
			errs = append(errs, fmt.Errorf("token %d (%s): duplicate token", i+1, t.Name))
		}
		b.sums = append(b.sums, [sha256.Size]byte(sum))
	}
	return b, errors.Join(errs...)
}

// Authenticate compares with every token, so that its duration reveals nothing.
func (b *bearer) Authenticate(r *http.Request) (Principal, error) {
	token, asPassword, ok := tokenOf(r)
	if !ok {
		return Principal{}, ErrNoCredentials
	}
	found := b.find(token)
	switch {
	case found >= 0:
		return Principal{Name: b.tokens[found].Name, Role: b.tokens[found].Role}, nil
	case asPassword:
		return Principal{}, ErrNoCredentials // it may be a user's password, for another authenticator
	default:
		return Principal{}, ErrBadCredentials
	}
}

// Known reports whether the token is one of ours. It only costs a digest, so a token that is sent as a password is
// checked even while others guess.
func (b *bearer) Known(r *http.Request) bool {
	token, _, ok := tokenOf(r)
	return ok && b.find(token) >= 0
}

func (b *bearer) find(token string) int {
	sum := sha256.Sum256([]byte(token))
	found := -1
	for i := range b.sums {
		if subtle.ConstantTimeCompare(sum[:], b.sums[i][:]) == 1 {
			found = i
		}
	}
	return found
}

// tokenOf is the token of a request: a bearer token, or the password from a browser, which cannot send bearer tokens.
func tokenOf(r *http.Request) (token string, asPassword, ok bool) {
	if _, password, ok := r.BasicAuth(); ok {
		return strings.TrimSpace(password), true, true
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.TrimSpace(token), false, strings.EqualFold(scheme, "Bearer")
}

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

// ProxyConfig specifies the headers of an authenticating reverse proxy. They are only trusted when the connection comes
// from the proxy, which must remove them from what clients send.
type ProxyConfig struct {
	// From are the addresses of the proxy: 10.0.0.7, 10.0.0.0/8. Required.
	From []string
	// UserHeader has the user's name. Defaults to X-Forwarded-User.
	UserHeader string
	// GroupsHeader has the user's groups, separated by commas. Defaults to X-Forwarded-Groups.
	GroupsHeader string
	// Users and Groups are the roles of users and members of groups; the highest counts.
	Users, Groups map[string]Role
	// Default is the role of users in neither. None refuses them.
	Default Role
}

type proxy struct {
	cfg  ProxyConfig
	from []netip.Prefix
}

// Proxy authenticates by the headers of a reverse proxy.
func Proxy(cfg ProxyConfig) (Authenticator, error) {
	cfg.UserHeader = cmp.Or(cfg.UserHeader, "X-Forwarded-User")
	cfg.GroupsHeader = cmp.Or(cfg.GroupsHeader, "X-Forwarded-Groups")
	p := &proxy{cfg: cfg}
	var errs []error
	if len(cfg.From) == 0 {
		errs = append(errs, errors.New("proxy: from is required: the addresses that the proxy connects from, "+
			"otherwise anyone could claim to be anyone"))
	}
	for _, text := range cfg.From {
		prefix, err := parsePrefix(text)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("proxy: from: %q is not an address such as 10.0.0.7 or 10.0.0.0/8", text))
		case prefix.Bits() == 0:
			errs = append(errs, fmt.Errorf("proxy: from: %q is everyone, who could then claim to be anyone", text))
		default:
			p.from = append(p.from, prefix)
		}
	}
	if len(cfg.Users)+len(cfg.Groups) == 0 && cfg.Default <= None {
		errs = append(errs, errors.New("proxy: no one has a role: give users, groups or default_role"))
	}
	return p, errors.Join(errs...)
}

func parsePrefix(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err
}

// Authenticate trusts the headers of the proxy, and of no other sender.
func (p *proxy) Authenticate(r *http.Request) (Principal, error) {
	addr, ok := remote(r)
	if !ok {
		return Principal{}, ErrNoCredentials
	}
	trusted := slices.ContainsFunc(p.from, func(from netip.Prefix) bool { return from.Contains(addr) })
	names := r.Header.Values(p.cfg.UserHeader)
	if !trusted || len(names) == 0 {
		return Principal{}, ErrNoCredentials
	}
	name := names[0]
	if len(names) > 1 || !Proper(name) {
		return Principal{}, fmt.Errorf("%w: the proxy sends no single, readable %s", ErrBadCredentials, p.cfg.UserHeader)
	}
	role := max(p.cfg.Default, p.cfg.Users[name])
	for _, header := range r.Header.Values(p.cfg.GroupsHeader) {
		for group := range strings.SplitSeq(header, ",") {
			role = max(role, p.cfg.Groups[strings.TrimSpace(group)])
		}
	}
	return Principal{Name: name, Role: role}, nil
}

// remote is the address that the connection comes from.
func remote(r *http.Request) (netip.Addr, bool) {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(host)
	return addr.Unmap(), err == nil
}
