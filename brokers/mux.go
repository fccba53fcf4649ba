package brokers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redrive-go/redrive/envelope"
	"github.com/redrive-go/redrive/internal/secrets"
	"github.com/redrive-go/redrive/internal/suggest"
)

// ErrUnknownScheme means that no driver is registered for the scheme of a URL.
var ErrUnknownScheme = errors.New("unknown broker scheme")

// importPaths lists where in brokers the drivers of this module are, for the error about a forgotten import.
var importPaths = map[string]string{
	"mem": "memory", "amqp": "rabbitmq", "amqps": "rabbitmq", "kafka": "kafka", "nats": "nats", "nats+tls": "nats",
	"postgres": "sqlqueue", "postgresql": "sqlqueue", "mysql": "sqlqueue", "mariadb": "sqlqueue", "sqlite": "sqlqueue",

	"gochannel": "watermill/gochannel", "watermill+kafka": "watermill/kafka",
	"watermill+amqp": "watermill/amqp", "watermill+amqps": "watermill/amqp",
	"watermill+postgres": "watermill/sql", "watermill+postgresql": "watermill/sql", "watermill+mysql": "watermill/sql",
	"watermill+mariadb": "watermill/sql", "watermill+sqlite": "watermill/sql",
}

// Mux opens brokers by the scheme of their URL. The zero value has no drivers. It is safe for concurrent use. Programs
// that avoid global state create their own; others use [Open] and [Register], which share one.
type Mux struct {
	mu      sync.RWMutex
	drivers map[string]Driver
}

var defaultMux = new(Mux)

// Register makes d the driver of scheme in the shared Mux. Drivers call it from init, so that a blank import is
// enough. It panics as [Mux.Register] does.
func Register(scheme string, d Driver) { defaultMux.Register(scheme, d) }

// Schemes lists the schemes registered in the shared Mux, sorted.
func Schemes() []string { return defaultMux.Schemes() }

// Lookup returns the driver of scheme in the shared Mux, for its parameters.
func Lookup(scheme string) (Driver, bool) { return defaultMux.Driver(scheme) }

// Open opens the broker that rawURL names with the drivers registered by [Register]. The caller closes it.
func Open(ctx context.Context, rawURL string, opts ...Option) (Broker, error) {
	return defaultMux.Open(ctx, rawURL, opts...)
}

// OpenConfig is [Open] for a Config.
func OpenConfig(ctx context.Context, cfg Config) (Broker, error) {
	return defaultMux.OpenConfig(ctx, cfg)
}

// CheckConfig returns the error of OpenConfig for a Config that is invalid, and opens nothing.
func CheckConfig(cfg Config) error {
	_, _, err := defaultMux.resolve(cfg)
	return err
}

// Register makes d the driver of scheme. It panics if the scheme already has a driver, d is nil, scheme is not
// lower-case, or the name of a secret parameter does not show that it is secret: these are mistakes of the program,
// found at its first start.
func (m *Mux) Register(scheme string, d Driver) {
	if d == nil || scheme == "" || scheme != strings.ToLower(scheme) {
		panic(fmt.Sprintf("brokers: Register(%q, %T): want a lower-case scheme and a driver", scheme, d))
	}
	for _, p := range d.Params() {
		if p.Secret && !secretName(p.Name) {
			panic(fmt.Sprintf("brokers: parameter %q of scheme %q is secret, but its name does not show it: call it password, "+
				"secret, token or credential", p.Name, scheme))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, taken := m.drivers[scheme]; taken {
		panic(fmt.Sprintf("brokers: scheme %q is registered twice", scheme))
	}
	if m.drivers == nil {
		m.drivers = map[string]Driver{}
	}
	m.drivers[scheme] = d
}

// Schemes lists the registered schemes, sorted.
func (m *Mux) Schemes() []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Sorted(maps.Keys(m.drivers))
}

// Driver returns the driver of scheme.
func (m *Mux) Driver(scheme string) (Driver, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	d, ok := m.drivers[scheme]
	return d, ok
}

// Open opens the broker that rawURL names. The caller closes it.
func (m *Mux) Open(ctx context.Context, rawURL string, opts ...Option) (Broker, error) {
	cfg := Config{URL: rawURL}
	for _, opt := range opts {
		opt(&cfg)
	}
	return m.OpenConfig(ctx, cfg)
}

// OpenConfig opens the broker that cfg describes. The caller closes it.
func (m *Mux) OpenConfig(ctx context.Context, cfg Config) (Broker, error) {
	d, resolved, err := m.resolve(cfg)
	if err != nil {
		return nil, err
	}
	b, err := openWithin(ctx, d, resolved)
	if err != nil {
		return nil, secrets.Hide(err, resolved.secrets(d.Params())...) // the driver may have missed one
	}
	return b, nil
}

// resolve finds the driver and the complete configuration.
func (m *Mux) resolve(cfg Config) (d Driver, resolved Config, err error) {
	u, err := parseURL(cfg.URL)
	if err != nil {
		return nil, resolved, fmt.Errorf("brokers: %w", err)
	}
	d, ok := m.Driver(u.Scheme)
	if !ok {
		return nil, resolved, m.unknownScheme(u.Scheme)
	}
	resolved, err = cfg.Resolve(d.Params())
	return d, resolved, err
}

// openGrace is how long a driver may take to return its reason after the context has ended.
const openGrace = 250 * time.Millisecond

// openWithin returns soon after ctx has ended. Clients such as sarama and amqp091 have no context for connecting, and
// wait for a silent server for half a minute or longer; a connection that succeeds later is closed.
func openWithin(ctx context.Context, d Driver, cfg Config) (Broker, error) {
	type result struct {
		broker Broker
		err    error
	}
	opened := make(chan result, 1)
	go func() {
		b, err := d.Open(ctx, cfg)
		opened <- result{b, err}
	}()
	select {
	case r := <-opened:
		return r.broker, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-opened:
		return r.broker, r.err
	case <-time.After(openGrace):
	}
	go func() {
		if r := <-opened; r.broker != nil {
			_ = r.broker.Close()
		}
	}()
	return nil, fmt.Errorf("brokers: open %s: %w", Redact(cfg.URL), context.Cause(ctx))
}

func (m *Mux) unknownScheme(scheme string) error {
	registered := cmp.Or(strings.Join(m.Schemes(), ", "), "none")
	hint := "a broker URL looks like amqp://host:5672/"
	if path, known := importPaths[scheme]; known {
		hint = fmt.Sprintf("forgotten import? try _ %q", "github.com/redrive-go/redrive/brokers/"+path)
	} else if meant := suggest.Nearest(scheme, slices.Sorted(maps.Keys(importPaths))); meant != "" {
		hint = fmt.Sprintf("did you mean %s?", meant)
	}
	return fmt.Errorf("brokers: %w %q: registered are: %s; %s", ErrUnknownScheme, scheme, registered, hint)
}

// Option changes the Config that [Open] creates from a URL. The URL's own parameters override it.
type Option func(*Config)

// WithNaming sets Config.Naming.
func WithNaming(s NameScheme) Option { return func(c *Config) { c.Naming = s } }

// WithDelays sets Config.Delays.
func WithDelays(delays ...time.Duration) Option { return func(c *Config) { c.Delays = delays } }

// WithDeadLetters sets Config.DeadLetters, for dead letters that the broker itself creates:
// brokers.WithDeadLetters(letters.DeadLetter).
func WithDeadLetters(keep func(ctx context.Context, d *envelope.DeadLetter) error) Option {
	return func(c *Config) { c.DeadLetters = keep }
}

// WithLogger sets Config.Logger; [envelope.SlogLogger] adapts Watermill's.
func WithLogger(l *slog.Logger) Option { return func(c *Config) { c.Logger = l } }

// WithConfig changes any field of the Config.
func WithConfig(change func(*Config)) Option { return func(c *Config) { change(c) } }

// parseURL parses a broker URL. Its errors never repeat any part of the URL except the scheme: net/url quotes the part
// that it could not parse, and with an unescaped character in a password that is the password.
func parseURL(raw string) (*url.URL, error) {
	if raw == "" {
		return nil, errors.New("the URL is empty; write mem://, amqp://host:5672/, kafka://host:9092 or postgres://host/db")
	}
	if raw != strings.TrimSpace(raw) {
		return nil, errors.New("the URL has leading or trailing space")
	}
	u, err := url.Parse(raw)
	if err == nil {
		if u.Scheme == "" {
			return nil, errors.New("the URL has no scheme; write mem://, amqp://host:5672/, kafka://host:9092 or " +
				"postgres://host/db")
		}
		// It parses although a password cuts it short: in amqp://user:1#2@host/ the host is "user", the port 1, and the rest
		// would be shown in the clear.
		if u.Fragment != "" || strings.Contains(u.EscapedPath()+u.RawQuery, "@") {
			return nil, fmt.Errorf("the %s URL has an @ or # behind its host. %s", u.Scheme, encodeHint)
		}
		return u, nil
	}

	scheme, _, found := strings.Cut(raw, "://")
	if !found || strings.ContainsAny(scheme, ":/?#@ ") {
		return nil, errors.New("this is not a URL; write scheme://host")
	}
	why := "its host or port cannot be read"
	if _, escape := errors.AsType[url.EscapeError](err); escape {
		why = "it has a % that two hexadecimal digits do not follow"
	}
	return nil, fmt.Errorf("the %s URL cannot be parsed: %s. %s", scheme, why, encodeHint)
}

const encodeHint = "Special characters in a user name or password must be percent-encoded " +
	"(%23 for #, %25 for %, %2F for /, %3F for ?, %40 for @), or the password given apart in Config.Password"

// Redact returns rawURL with everything that may be a secret replaced by xxxxx: the password, the values of parameters
// whose names suggest secrets, and the secrets of those that are URLs. It is for logs and errors. A URL that cannot be
// parsed is reduced to its scheme.
func Redact(rawURL string) string {
	u, err := parseURL(rawURL)
	if err != nil {
		scheme, _, found := strings.Cut(rawURL, "://")
		if !found || strings.ContainsAny(scheme, ":/?#@ ") {
			return "(unreadable URL)"
		}
		return scheme + "://(unreadable)"
	}
	if strings.ContainsAny(u.Opaque, "@:%") { // not the file of sqlite:queue.db, which operators need to see
		return u.Scheme + ":xxxxx"
	}
	if u.RawQuery != "" {
		pairs := strings.Split(u.RawQuery, "&")
		for i, pair := range pairs {
			key, raw, _ := strings.Cut(pair, "=")
			name, badName := url.QueryUnescape(key)
			value, badValue := url.QueryUnescape(raw)
			shown := "xxxxx"
			if badName == nil && badValue == nil {
				shown = shownValue(name, value)
			}
			if shown != value {
				pairs[i] = key + "=" + url.QueryEscape(shown)
			}
		}
		u.RawQuery = strings.Join(pairs, "&")
	}
	if isToken(u) {
		u.User = url.User("xxxxx")
	}
	return withSlashes(u, u.Redacted())
}

// withSlashes returns the text of u, which net/url prints as "mem:" for mem://.
func withSlashes(u *url.URL, text string) string {
	if u.Host == "" && u.Path == "" && u.User == nil && u.Opaque == "" {
		return u.Scheme + "://" + strings.TrimPrefix(text, u.Scheme+":")
	}
	return text
}

// secretName reports whether a parameter of this name probably holds a secret.
func secretName(name string) bool {
	parts := []string{
		"password", "passwd", "passphrase", "pwd", "secret", "token", "credential", "apikey", "api_key", "api-key",
	}
	name = strings.ToLower(name)
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(name, part) })
}

// shownValue returns the value of a parameter as Redact shows it. It may be the URL of something else.
func shownValue(name, value string) string {
	user, _, at := strings.Cut(value, "@")
	switch {
	case secretName(name):
		return "xxxxx"
	case at && strings.Contains(user, ":"), strings.Contains(value, "://"):
		return Redact(value)
	default:
		return value
	}
}

// secrets lists the secret values of a resolved configuration.
func (c Config) secrets(params []Param) []string {
	found := []string{c.Password}
	for _, p := range params {
		if p.Secret || secretName(p.Name) {
			found = append(found, c.Params[p.Name])
		}
	}
	u, err := parseURL(c.URL)
	if err != nil {
		return found
	}
	for name, values := range u.Query() {
		if secretName(name) {
			found = append(found, values...)
		}
	}
	if isToken(u) {
		return append(found, u.User.Username())
	}
	password, _ := u.User.Password()
	return append(found, password)
}

// isToken reports whether the user of a URL is a token: NATS takes one without a password.
func isToken(u *url.URL) bool {
	_, given := u.User.Password()
	return u.User != nil && !given && strings.HasPrefix(u.Scheme, "nats")
}
