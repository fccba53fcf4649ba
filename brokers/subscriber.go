package brokers

import (
	"errors"
	"fmt"
	"maps"
	"time"
)

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
