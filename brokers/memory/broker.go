package memory

import (
	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/engine"
)

// Broker is a broker in this process's memory. It is safe for concurrent use. Create one with New, or open mem://.
type Broker struct {
	*engine.Broker
	store *store
}

var (
	_ brokers.Broker        = (*Broker)(nil)
	_ brokers.DepthReporter = (*Broker)(nil)
	_ brokers.ReaderCounter = (*Broker)(nil)
)

func open(s *store, cfg brokers.Config) (*Broker, error) {
	s.connect()
	b, err := engine.New(engine.Config{Config: cfg, Params: Driver{}.Params(), Transport: &transport{cfg: cfg, store: s}})
	if err != nil {
		s.disconnect()
		return nil, err
	}
	return &Broker{Broker: b, store: s}, nil
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
	return open(b.store, resolved)
}

// group names the group of a consumer without one, as the engine does.
func group(name string) string {
	if name == "" {
		return brokers.DefaultGroup
	}
	return name
}
