package brokers

import (
	"errors"
	"fmt"
	"maps"
	"time"
)

// SubscriberOption changes one subscriber; see [Broker.Subscriber].
type SubscriberOption func(*SubscriberConfig)

// SubscriberConfig is what a driver makes of the [Config] and the options given to [Broker.Subscriber].
type SubscriberConfig struct {
	// Group of the subscriber. Groups each see every message, subscribers of one group share them.
	Group string
	// Concurrency is how many messages are handed out before the first is acked.
	Concurrency int
	// DrainTimeout bounds the wait for running handlers at Close. It is the Config's.
	DrainTimeout time.Duration
	// Patterns are bound to the subscriber's queue alongside the topic given to Subscribe, on brokers with
	// Capabilities.Patterns and a naming scheme with Patterns.
	Patterns []string
	// Params are the driver's own parameters, those of the Config with the changes made by WithParam.
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

// WithConcurrency lets n handlers run at once. Anything above 1 gives up the order of messages.
func WithConcurrency(n int) SubscriberOption {
	return func(c *SubscriberConfig) { c.Concurrency = n }
}

// WithPatterns binds more event patterns, such as invoice.* or user.#, to the queue that Subscribe reads.
func WithPatterns(patterns ...string) SubscriberOption {
	return func(c *SubscriberConfig) { c.Patterns = append(c.Patterns, patterns...) }
}

// WithParam changes one of the driver's own parameters, named without x-, for this subscriber: a larger prefetch for
// one busy queue, say.
func WithParam(name, value string) SubscriberOption {
	return func(c *SubscriberConfig) { c.Params[name] = value }
}

// Subscriber applies opts to the defaults that c, resolved with params, gives. The returned configuration is usable
// only when the error is nil; a driver keeps the error and returns it from Subscribe.
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

	var faults []error
	if s.Concurrency < 1 {
		faults = append(faults, fmt.Errorf("concurrency %d: must be at least 1", s.Concurrency))
	}
	faults = append(faults, s.Params.resolve(params, "WithParam"))
	if (s.Group == "" || s.Group == DefaultGroup) && template(c.Naming.Queue).requires("group") {
		hint := ""
		if c.Naming.Preset == "service-bus" {
			hint = ", or " + EnvService + " in the environment"
		}
		faults = append(faults, fmt.Errorf("naming %s makes the queue's name from the group: give this consumer one with "+
			"Config.Group, the URL's group, or WithGroup%s", c.Naming.Preset, hint))
	}
	if err := errors.Join(faults...); err != nil {
		return SubscriberConfig{}, fmt.Errorf("brokers: subscriber options: %w", err)
	}
	return s, nil
}
