package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
)

// queue describes what one subscription reads, or returns why it cannot be read.
func (b *Broker) queue(topic string, cfg *brokers.SubscriberConfig) (driver.Queue, error) {
	q := driver.Queue{
		Topic:        topic,
		Group:        groupName(cfg.Group),
		Names:        b.namesFor(topic, cfg.Group),
		Patterns:     cfg.Patterns,
		Concurrency:  cfg.Concurrency,
		Window:       cfg.Concurrency,
		DrainTimeout: cfg.DrainTimeout,
		Params:       cfg.Params,
	}
	if b.declared("prefetch") {
		q.Window = max(q.Window, cfg.Params.Int("prefetch"))
	}
	if topic == "" {
		return q, errors.New("the topic has no name")
	}
	if !b.caps.Patterns {
		for _, p := range append([]string{topic}, cfg.Patterns...) {
			if brokers.IsPattern(p) {
				return q, fmt.Errorf("%w: %q is a pattern, which this broker does not support as configured: open it with "+
					"naming=service-bus, or subscribe to each topic by its name", brokers.ErrUnsupported, p)
			}
		}
		if len(cfg.Patterns) > 0 {
			return q, fmt.Errorf("%w: WithPatterns: this broker has no patterns as configured: open it with "+
				"naming=service-bus, or subscribe to each topic by its name", brokers.ErrUnsupported)
		}
		return q, nil
	}
	q.Patterns = b.expected.Patterns(topic, cfg.Patterns)
	return q, nil
}

// declared reports whether the driver has a parameter of that name.
func (b *Broker) declared(name string) bool {
	return slices.ContainsFunc(b.params, func(p brokers.Param) bool { return p.Name == name })
}
