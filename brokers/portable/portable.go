// Package portable makes a brokers.Broker of a driver.Transport, with everything that users are promised of every
// broker. A driver calls New in its Open; see package driver for how to write one.
package portable

import (
	"context"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/internal/engine"
)

// Config is what a broker is made of.
type Config struct {
	// Config as Driver.Open got it: resolved. Required.
	Config brokers.Config
	// Params are those of the driver, which brokers.WithParam may change for one subscriber.
	Params []brokers.Param
	// Transport belongs to the broker from then on, which closes it. Required.
	Transport driver.Transport
	// Delays keeps messages until they are due when the transport cannot. Optional. It stays the caller's, who closes
	// it after the broker.
	Delays brokers.Broker
	// DelaysTopic is the topic of Delays in which they wait. Brokers that share Delays and are not the same need separate
	// topics. Defaults to "redrive.delayed".
	DelaysTopic string
}

// New returns a broker on cfg.Transport. Close it.
func New(cfg Config) (brokers.Broker, error) {
	b, err := engine.New(engine.Config(cfg))
	if err != nil {
		return nil, err
	}
	if counter, ok := cfg.Transport.(brokers.DepthReporter); ok {
		return &counting{Broker: b, counter: counter}, nil
	}
	return b, nil
}

// counting is a broker whose transport counts what waits.
type counting struct {
	*engine.Broker
	counter brokers.DepthReporter
}

// Depths implements brokers.DepthReporter.
func (c *counting) Depths(ctx context.Context) ([]brokers.Depth, error) {
	return c.Broker.Depths(ctx, c.counter)
}
