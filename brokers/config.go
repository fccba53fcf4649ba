package brokers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/redrive-go/redrive/envelope"
)

// Defaults of a [Config].
const (
	DefaultConcurrency    = 1
	DefaultDrainTimeout   = 25 * time.Second // below the 30 s after which Watermill's router gives up
	DefaultPublishTimeout = 10 * time.Second
)

// Config is everything that a broker URL can express, for programs that read a file or are configured in code. Package
// brokerconfig reads it from YAML. The zero value of a field means its default.
//
// Printing a Config, or logging it with slog, shows no password.
type Config struct {
	// URL of the broker. Required. Its parameters override the other fields.
	URL string `yaml:"url"`
	// Username and Password are added to the URL, and need no percent-encoding here. If empty, the URL's are used.
	Username string `yaml:"username"`
	Password string `yaml:"password"`
	// Name identifies this client in the broker's own tools: connection name, client id. Defaults to the program's name.
	Name string `yaml:"name"`
	// Group is the default consumer group of subscribers. If empty, the driver's default applies; Kafka requires one.
	Group string `yaml:"group"`
	// Concurrency is how many handlers run at once per subscription, at most 100,000. Defaults to 1, which keeps messages
	// in order.
	Concurrency int `yaml:"concurrency"`
	// DrainTimeout bounds how long Close waits for running handlers. It must be shorter than the router's CloseTimeout.
	// Defaults to 25 s.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// PublishTimeout bounds the wait for the broker's confirm of one Publish, Reschedule or DeadLetter. Defaults to 10
	// s.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// Delays that are known in advance, such as the steps of a backoff. Brokers that wait in queues prepare one for each,
	// so that the first failure declares nothing. Other delays work too.
	Delays []time.Duration `yaml:"delays"`
	// Naming determines the names of queues. The zero value means [DefaultNames].
	Naming NameScheme `yaml:"naming"`
	// RefuseUnrouted makes Publish fail with [ErrUnroutable] for an event that no service has subscribed to. By default
	// this is not an error, as on any bus. Without patterns the broker decides about a topic without readers.
	RefuseUnrouted bool `yaml:"refuse_unrouted"`
	// Params are the driver's own parameters, by name without x-.
	Params Params `yaml:"params"`
	// DeadLetters stores the dead letters that the broker itself creates, before a handler or a middleware sees the
	// message: messages that kill their consumer's process, or that cannot be read. Use the pipeline's DeadLetters, so
	// that all dead letters are in one place: letters.DeadLetter. It returns nil when the dead letter is durable, and may
	// be called again with the same one. If it is nil, fails or takes longer than PublishTimeout, the broker's own
	// DeadLetter takes over.
	DeadLetters func(ctx context.Context, d *envelope.DeadLetter) error `yaml:"-"`
	// Logger receives errors that have no caller to return to. Defaults to slog.Default(). [envelope.SlogLogger] adapts a
	// watermill.LoggerAdapter.
	Logger *slog.Logger `yaml:"-"`
}

// Redacted returns c with everything secret replaced.
func (c Config) Redacted() Config {
	if c.URL != "" {
		c.URL = Redact(c.URL)
	}
	if c.Password != "" {
		c.Password = "xxxxx"
	} else if c.Username != "" && strings.HasPrefix(c.URL, "nats") { // it may be a token; see isToken
		c.Username = "xxxxx"
	}
	c.Params = maps.Clone(c.Params)
	for name, value := range c.Params {
		c.Params[name] = shownValue(name, value)
	}
	return c
}

// String shows the configuration without its secrets.
func (c Config) String() string {
	c = c.Redacted()
	var out strings.Builder
	fmt.Fprintf(&out, "url=%s", c.URL)
	for _, f := range []struct{ name, value string }{
		{"username", c.Username},
		{"password", c.Password},
		{"name", c.Name},
		{"group", c.Group},
		{"naming", c.Naming.Preset},
		{"project", c.Naming.Project},
	} {
		if f.value != "" {
			fmt.Fprintf(&out, " %s=%s", f.name, f.value)
		}
	}
	if c.Concurrency != 0 {
		fmt.Fprintf(&out, " concurrency=%d", c.Concurrency)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Params)) {
		fmt.Fprintf(&out, " %s=%s", name, c.Params[name])
	}
	return out.String()
}

// GoString keeps %#v from showing secrets.
func (c Config) GoString() string { return "brokers.Config{" + c.String() + "}" }

// LogValue keeps slog from showing secrets.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// SubscriberOption changes one subscriber; see [Broker.Subscriber].
type SubscriberOption func(*SubscriberConfig)

// SubscriberConfig is the result of the [Config] and the options of [Broker.Subscriber].
type SubscriberConfig struct {
	// Group of the subscriber. Groups each see every message, subscribers of one group share them.
	Group string
	// Concurrency is how many messages are delivered before the first is acked.
	Concurrency int
	// DrainTimeout bounds the wait for running handlers at Close. It is taken from the Config.
	DrainTimeout time.Duration
	// Patterns are bound to the subscriber's queue in addition to the topic given to Subscribe, on brokers with
	// Capabilities.Patterns and a naming scheme with Patterns.
	Patterns []string
	// Params are the driver's own parameters: those of the Config with the changes made by WithParam.
	Params Params
}

// WithGroup sets the consumer group. An empty name keeps the Config's.
func WithGroup(name string) SubscriberOption {
	return func(c *SubscriberConfig) {
		if name != "" {
			c.Group = name
		}
	}
}

// WithConcurrency lets n handlers run at once. Values above 1 give up the order of messages.
func WithConcurrency(n int) SubscriberOption {
	return func(c *SubscriberConfig) { c.Concurrency = n }
}

// WithPatterns binds more event patterns, such as invoice.* or user.#, to the queue that Subscribe reads.
func WithPatterns(patterns ...string) SubscriberOption {
	return func(c *SubscriberConfig) { c.Patterns = append(c.Patterns, patterns...) }
}

// WithParam changes one of the driver's own parameters, named without x-, for this subscriber, for example a larger
// prefetch for one busy queue.
func WithParam(name, value string) SubscriberOption {
	return func(c *SubscriberConfig) { c.Params[name] = value }
}

// Subscriber applies opts to the defaults of c, resolved with params. The returned configuration is usable only if the
// error is nil; a driver keeps the error and returns it from Subscribe.
func (c Config) Subscriber(params []Param, opts ...SubscriberOption) (SubscriberConfig, error) {
	s := SubscriberConfig{
		Group:        c.Group,
		Concurrency:  c.Concurrency,
		DrainTimeout: c.DrainTimeout,
		Params:       maps.Clone(c.Params),
	}
	if s.Params == nil {
		s.Params = Params{}
	}
	for _, opt := range opts {
		opt(&s)
	}

	faults := []error{validConcurrency(s.Concurrency), s.Params.resolve(params, "WithParam")}
	if (s.Group == "" || s.Group == DefaultGroup) && template(c.Naming.Queue).requires("group") {
		faults = append(faults, fmt.Errorf("naming %s derives the queue's name from the group: give this consumer one with "+
			"Config.Group, the URL's group, or WithGroup", c.Naming.Preset))
	}
	if err := errors.Join(faults...); err != nil {
		return SubscriberConfig{}, fmt.Errorf("brokers: subscriber options: %w", err)
	}
	return s, nil
}

// setting is one of the common parameters, and its field of Config.
type setting struct {
	Param
	set func(c *Config, value string) // value has passed Param.check
}

var settings = []setting{
	{Param{Name: "name"}, func(c *Config, v string) { c.Name = v }},
	{Param{Name: "group"}, func(c *Config, v string) { c.Group = v }},
	{
		Param{Name: "concurrency", Type: Int, Min: 1, Max: maxConcurrency},
		func(c *Config, v string) { c.Concurrency = Params{"": v}.Int("") },
	},
	{Param{Name: "drain", Type: Duration}, func(c *Config, v string) { c.DrainTimeout = Params{"": v}.Duration("") }},
	{
		Param{Name: "publish-timeout", Type: Duration, Min: 1},
		func(c *Config, v string) { c.PublishTimeout = Params{"": v}.Duration("") },
	},
	{Param{Name: "delays", Type: DurationList}, func(c *Config, v string) { c.Delays = Params{"": v}.Durations("") }},
	{Param{Name: "refuse-unrouted", Type: Bool}, func(c *Config, v string) { c.RefuseUnrouted = Params{"": v}.Bool("") }},
	{Param{Name: "naming"}, func(c *Config, v string) { c.Naming.Preset = v }},
	{Param{Name: "project"}, func(c *Config, v string) { c.Naming.Project = v }},
	{Param{Name: "exchange"}, func(c *Config, v string) { c.Naming.Exchange = v }},
	{Param{Name: "queue"}, func(c *Config, v string) { c.Naming.Queue = v }},
	{Param{Name: "retry"}, func(c *Config, v string) { c.Naming.Retry = v }},
	{Param{Name: "retry-exchange"}, func(c *Config, v string) { c.Naming.RetryExchange = v }},
	{Param{Name: "delayed"}, func(c *Config, v string) { c.Naming.Delayed = v }},
	{Param{Name: "dead"}, func(c *Config, v string) { c.Naming.Dead = v }},
	{Param{Name: "dead-exchange"}, func(c *Config, v string) { c.Naming.DeadExchange = v }},
}

// Resolve checks c against the parameters that a driver declares and returns it in the form that drivers need:
// parameters moved from the URL into their fields, user name and password in the URL, every value checked and every
// default filled in. It reports all faults at once, without any password. Resolving twice changes nothing.
func (c Config) Resolve(params []Param) (Config, error) {
	u, err := parseURL(c.URL)
	if err != nil {
		return Config{}, fmt.Errorf("brokers: %w", err)
	}
	c.Params = maps.Clone(c.Params)
	if c.Params == nil {
		c.Params = Params{}
	}

	var faults []error
	rest, err := c.takeQuery(u, params)
	faults = append(faults, err)
	c.putUser(u)
	u.RawQuery = rest
	c.URL = withSlashes(u, u.String())

	faults = append(faults, c.Params.resolve(params, inConfig))
	c.setDefaults()
	faults = append(faults, c.validate())
	if err := errors.Join(faults...); err != nil {
		return Config{}, fmt.Errorf("brokers: open %s: %w", Redact(c.URL), err)
	}
	return c, nil
}

// takeQuery moves our parameters from the URL's query into c and returns the backend's part of the query.
func (c *Config) takeQuery(u *url.URL, params []Param) (rest string, err error) {
	var (
		faults []error
		kept   []string
		seen   = map[string]bool{}
	)
	for pair := range strings.SplitSeq(u.RawQuery, "&") {
		if pair == "" {
			continue
		}
		rawKey, rawValue, _ := strings.Cut(pair, "=")
		key, keyErr := url.QueryUnescape(rawKey)
		value, valueErr := url.QueryUnescape(rawValue)
		if keyErr != nil || valueErr != nil {
			faults = append(faults, errors.New("a URL parameter has a % that two hexadecimal digits do not follow"))
			continue
		}
		name, prefixed := strings.CutPrefix(key, "x-")
		if !prefixed && isNative(key, params) {
			kept = append(kept, pair)
			continue
		}
		if seen[name] {
			faults = append(faults, fmt.Errorf("parameter %s is given twice", key))
			continue
		}
		seen[name] = true
		faults = append(faults, c.take(name, value, key, params))
	}
	return strings.Join(kept, "&"), errors.Join(faults...)
}

// take stores one parameter in its field, or among the driver's own.
func (c *Config) take(name, value, key string, params []Param) error {
	i := slices.IndexFunc(params, func(p Param) bool { return p.Name == name && name != anyParam && !p.Native })
	if i >= 0 {
		c.Params[name] = value // checked with the others
		return nil
	}
	for _, s := range settings {
		if s.Name != name {
			continue
		}
		if value == "" {
			return fmt.Errorf("parameter %s is empty", key)
		}
		if err := s.check(value); err != nil {
			return err
		}
		s.set(c, value)
		return nil
	}
	return unknownParam("URL", key, knownInURL(params))
}

// isNative reports whether a parameter without x- is the backend's own.
func isNative(name string, params []Param) bool {
	return slices.ContainsFunc(params, func(p Param) bool { return p.Native && (p.Name == name || p.Name == anyParam) })
}

// knownInURL lists the parameters as they may be written.
func knownInURL(params []Param) []string {
	var known []string
	add := func(name string) {
		if isNative(name, params) {
			name = "x-" + name
		}
		known = append(known, name)
	}
	for _, s := range settings {
		add(s.Name)
	}
	for _, p := range params {
		switch {
		case p.Name == anyParam:
		case !p.Native:
			add(p.Name)
		default:
			known = append(known, p.Name)
		}
	}
	return known
}

func (c *Config) putUser(u *url.URL) {
	name := cmp.Or(c.Username, u.User.Username())
	password, has := u.User.Password()
	if c.Password != "" {
		password, has = c.Password, true
	}
	switch {
	case has:
		u.User = url.UserPassword(name, password)
	case name != "":
		u.User = url.User(name)
	}
}

func (c *Config) setDefaults() {
	c.Name = cmp.Or(c.Name, filepath.Base(os.Args[0]))
	c.Concurrency = cmp.Or(c.Concurrency, DefaultConcurrency)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, DefaultDrainTimeout)
	c.PublishTimeout = cmp.Or(c.PublishTimeout, DefaultPublishTimeout)
	c.Logger = cmp.Or(c.Logger, slog.Default())
	c.Naming = c.Naming.filled()
}

// maxConcurrency bounds what one subscription starts: a goroutine for each handler.
const maxConcurrency = 100_000

func validConcurrency(n int) error {
	if n < 1 || n > maxConcurrency {
		return fmt.Errorf("concurrency %d: must be between 1 and %d", n, maxConcurrency)
	}
	return nil
}

// within bounds a time by the longest delay that a message can have. A timeout that is longer is a mistake too.
func within(name string, d time.Duration) error {
	switch {
	case d < 0:
		return fmt.Errorf("%s %s: must not be negative", name, d)
	case d > envelope.MaxDelay:
		return fmt.Errorf("%s %s: the longest is %s", name, d, envelope.MaxDelay)
	}
	return nil
}

func (c *Config) validate() error {
	faults := []error{validConcurrency(c.Concurrency)}
	faults = append(faults, within("drain timeout", c.DrainTimeout), within("publish timeout", c.PublishTimeout))
	for _, d := range c.Delays {
		faults = append(faults, within("delay", d))
	}
	return errors.Join(append(faults, c.Naming.Validate())...)
}
