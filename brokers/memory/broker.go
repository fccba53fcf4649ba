package memory

import (
	"context"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/engine"
)

// Broker is a broker in this process's memory. It is safe for concurrent use. Create one with New, or open mem://.
type Broker struct {
	*engine.Broker
	transport *transport
}

var (
	_ brokers.Broker        = (*Broker)(nil)
	_ brokers.DepthReporter = (*Broker)(nil)
	_ brokers.ReaderCounter = (*Broker)(nil)
)

func open(s *store, cfg brokers.Config) (*Broker, error) {
	t := &transport{cfg: cfg, store: s}
	b, err := engine.New(engine.Config{Config: cfg, Params: Driver{}.Params(), Transport: t})
	if err != nil {
		return nil, err
	}
	return &Broker{Broker: b, transport: t}, nil
}

// Connect returns a second broker on the same queues, like a second or restarted process. change may alter its
// configuration and may be nil. Naming stays unchanged, because it belongs to the queues. Close both; unconsumed
// messages outlive them, as on a server, as long as a broker remains to Connect to.
func (b *Broker) Connect(change func(*brokers.Config)) (*Broker, error) {
	cfg := b.Config()
	naming := cfg.Naming
	if change != nil {
		change(&cfg)
	}
	cfg.Naming = naming
	resolved, err := cfg.Resolve(Driver{}.Params())
	if err != nil {
		return nil, err
	}
	return open(b.transport.store, resolved)
}

// Depths implements brokers.DepthReporter, over the queues of all brokers that are connected to this one. It counts
// messages that are delayed, in retry, ready, and in dead letter queues.
func (b *Broker) Depths(ctx context.Context) ([]brokers.Depth, error) {
	return b.Broker.Depths(ctx, b.transport)
}
