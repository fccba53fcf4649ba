package memory

import (
	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/internal/engine"
)

// Broker is a broker in this process's memory. It is safe for concurrent use. Make one with New, or open mem://.
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

// Connect returns a second broker on the same queues, as a second process or a restarted one would open it. change may
// alter its configuration and may be nil. Naming stays as it is: it belongs to the queues. Close both; what was not
// consumed outlives them, as it would on a server, for as long as there is somebody to Connect.
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

// group gives the consumer of no group a name, as the engine does.
func group(name string) string {
	if name == "" {
		return brokers.DefaultGroup
	}
	return name
}
