package brokers

import (
	"cmp"
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
