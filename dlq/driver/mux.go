package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/redrive-go/redrive/dlq/internal/scheme"
)

// DefaultURL is what [Open] opens if the URL is empty: a SQLite file in the working directory.
const DefaultURL = "sqlite:dead-letters.db"

// Driver opens stores for the URL schemes that it is registered for.
type Driver interface {
	// OpenStore opens the store that u names and brings its schema up to date. It refuses URL parameters that it does
	// not know, and shows no password in its errors.
	OpenStore(ctx context.Context, u *url.URL) (Store, error)
}

// Mux opens stores by the scheme of their URL. The zero Mux is ready; it is safe for concurrent use.
type Mux struct {
	mu      sync.RWMutex
	drivers map[string]Driver
}

// DefaultMux is the registry of [Register].
var DefaultMux Mux

// Register makes a driver available to [Open] under a URL scheme. It panics when the scheme is taken or d is nil, which
// are programming errors. Driver packages call it from init.
func Register(scheme string, d Driver) { DefaultMux.Register(scheme, d) }

// Schemes lists what [Open] can open, sorted.
func Schemes() []string { return DefaultMux.Schemes() }

// Register makes a driver available under a URL scheme. It panics when the scheme is taken, empty, or d is nil.
func (m *Mux) Register(scheme string, d Driver) {
	scheme = strings.ToLower(scheme)
	m.mu.Lock()
	defer m.mu.Unlock()
	if scheme == "" || d == nil {
		panic("dlq/driver: Register with an empty scheme or a nil driver")
	}
	if _, taken := m.drivers[scheme]; taken {
		panic("dlq/driver: Register called twice for scheme " + scheme)
	}
	if m.drivers == nil {
		m.drivers = make(map[string]Driver)
	}
	m.drivers[scheme] = d
}

// Schemes lists the registered schemes, sorted.
func (m *Mux) Schemes() []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Sorted(maps.Keys(m.drivers))
}

// OpenStore opens the store that the URL names. A text without a scheme is the path of a SQLite file; an empty one is
// [DefaultURL]. The error for an unknown scheme lists the known ones and the import that is missing.
func (m *Mux) OpenStore(ctx context.Context, rawURL string) (Store, error) {
	u, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	m.mu.RLock()
	d := m.drivers[u.Scheme]
	m.mu.RUnlock()
	if d == nil {
		return nil, m.unknown(u.Scheme)
	}
	return d.OpenStore(ctx, u)
}

func (m *Mux) unknown(name string) error {
	here := "none is registered"
	if schemes := m.Schemes(); len(schemes) > 0 {
		here = "registered: " + strings.Join(schemes, ", ")
	}
	hint := "forgotten import?"
	if slices.Contains([]string{"sqlite", "postgres", "mysql"}, scheme.Canonical(name)) {
		hint += ` add _ "github.com/redrive-go/redrive/dlq/sqlstore"`
	}
	return fmt.Errorf("dlq: open: unknown scheme %q (%s); %s", name, here, hint)
}

// dsn matches what PostgreSQL's and MySQL's drivers accept apart from URLs. As the path of a SQLite file it would show
// its password in a directory.
var dsn = regexp.MustCompile(`(?i)^[^:]*\b(password|host|user|dbname)\s*=|@(tcp|unix)?\(`)

// ParseURL reads a store's URL as [Mux.OpenStore] does. Its errors never quote the URL: it may carry a password.
func ParseURL(rawURL string) (*url.URL, error) {
	rawURL = cmp.Or(rawURL, DefaultURL)
	if !strings.Contains(rawURL, "://") && dsn.MatchString(rawURL) {
		return nil, errors.New("dlq: open: this is a database driver's connection string; write " +
			"postgres://user@host/database, mysql://user@host/database or sqlite:FILE")
	}
	if scheme, _, found := strings.Cut(rawURL, ":"); !found || !isScheme(scheme) {
		return &url.URL{Scheme: "sqlite", Opaque: rawURL}, nil
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		if parse, ok := errors.AsType[*url.Error](err); ok {
			err = parse.Err // without the URL that url.Error quotes
		}
		if _, escape := errors.AsType[url.EscapeError](err); escape || strings.Contains(err.Error(), "port") {
			// Both quote part of the URL, which is the password if that contains an unescaped % or :.
			err = errors.New(`a character in the user name or password is not percent-encoded (% as %25, @ as %40, : as %3A, ` +
				`/ as %2F)`)
		}
		return nil, fmt.Errorf("dlq: open: not a URL: %w", err)
	}
	return u, nil
}

// isScheme reports whether the text before a colon is a scheme; a single letter is a Windows drive.
func isScheme(s string) bool {
	if len(s) < 2 {
		return false
	}
	for i, r := range s {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
		if !letter && (i == 0 || !strings.ContainsRune("0123456789+-.", r)) {
			return false
		}
	}
	return true
}
