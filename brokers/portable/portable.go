// Package portable turns a driver.Transport into a brokers.Broker with all the guarantees of every broker. A driver
// calls New in its Open; see package driver for how to write one.
package portable

import (
	"context"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/internal/engine"
)

// Config configures a broker.
type Config struct {
	// Config as passed to Driver.Open: resolved. Required.
	Config brokers.Config
	// Params are the driver's parameters, which brokers.WithParam may change for one subscriber.
	Params []brokers.Param
	// Transport is owned and closed by the broker. Required.
	Transport driver.Transport
	// Delays keeps messages until they are due if the transport cannot. Every broker with these Delays, also one that only
	// publishes, subscribes to DelaysTopic when it is created and forwards what is due, so that a message does not depend
	// on the process that stored it. Optional. The caller closes it after the broker.
	Delays brokers.Broker
	// DelaysTopic is the topic of Delays in which they wait. Different brokers that share Delays need separate topics.
	// Defaults to "redrive.delayed".
	DelaysTopic string
	// Context of Driver.Open: it ends the wait of New for the server of Delays, and nothing after that. Optional.
	Context context.Context
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

// counting is a broker whose transport counts waiting messages.
type counting struct {
	*engine.Broker
	counter brokers.DepthReporter
}

// Depths implements brokers.DepthReporter.
func (c *counting) Depths(ctx context.Context) ([]brokers.Depth, error) {
	return c.Broker.Depths(ctx, c.counter)
}
