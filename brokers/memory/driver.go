package memory

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/redrive-go/redrive/brokers"
	"github.com/redrive-go/redrive/brokers/driver"
	"github.com/redrive-go/redrive/brokers/internal/engine"
)

// Scheme of the URLs that open this broker.
const Scheme = "mem"

func init() { brokers.Register(Scheme, Driver{}) }

// Driver opens mem:// URLs. Importing the package registers it in the shared Mux; programs with their own Mux
// register it there.
type Driver struct{}

var _ brokers.Driver = Driver{}

// Params implements brokers.Driver.
func (Driver) Params() []brokers.Param {
	return []brokers.Param{
		driver.NackPause(),
		{
			Name: "max-message", Type: brokers.Size, Default: "0",
			Doc: "Largest message in bytes, payload and headers together; 0 means no limit.",
		},
		{Name: "*", Doc: "Parameters of other drivers under params in a configuration are ignored, because mem:// " +
			"replaces those drivers in tests."},
	}
}

// Open implements brokers.Driver.
func (Driver) Open(_ context.Context, cfg brokers.Config) (brokers.Broker, error) {
	rest, _, _ := strings.Cut(strings.TrimPrefix(cfg.URL, Scheme+"://"), "?")
	if rest != "" {
		return nil, fmt.Errorf("memory: %s: write %s:// and no host or path: every Open makes a separate broker; "+
			"share one *Broker, or Connect to it", brokers.Redact(cfg.URL), Scheme)
	}
	s := &store{patterns: cfg.Naming.Patterns, queues: map[consumer]*queue{}, orphans: map[orphan]*queue{}}
	return open(s, cfg) //nolint:contextcheck // the broker outlives the context it was opened with
}

// New opens a separate broker for tests and programs without a URL. An empty cfg.URL means mem://. Close it.
func New(cfg brokers.Config) (*Broker, error) {
	cfg.URL = cmp.Or(cfg.URL, Scheme+"://")
	resolved, err := cfg.Resolve(Driver{}.Params())
	if err != nil {
		return nil, err
	}
	b, err := Driver{}.Open(context.Background(), resolved)
	if err != nil {
		return nil, err
	}
	return b.(*Broker), nil
}

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
